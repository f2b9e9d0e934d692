"""Servers that help this one: a prompt rewriter, and a conditioner that encodes prompts. Each against a stub and, for the
conditioner, against another h3."""
import base64
import http.server
import threading

from harness import *


class Stub:
    """Answers every POST with what `reply` says and keeps what it was asked."""

    def __init__(self, reply):
        stub = self
        self.asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                stub.asked.append((self.path, dict(self.headers), json.loads(body)))
                status, answer = reply()
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.http.server_port
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()

    def close(self):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


def chat(text):
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


class RewriterTest(unittest.TestCase):
    def run_job(self, reply, **fields):
        stub = Stub(lambda: reply)
        server = Server("--rewriter", stub.url + "/v1", "--rewriter-key", "word")
        try:
            job = server.finished(server.submit(**fields))
            return job, stub.asked, server.get("/v1/videos/%s/report" % job["id"]).json, server.get("/v1/models").json["data"][0]
        finally:
            server.close()
            stub.close()

    def test_rewrites_and_keeps_the_original(self):
        job, asked, report, model = self.run_job(chat("A red ball, seen from below."), rewrite_prompt=True)
        self.assertEqual(job["status"], "completed", job)
        self.assertEqual((job["prompt"], job["rewritten_prompt"]), (SMALL["prompt"], "A red ball, seen from below."))
        self.assertEqual(report["recipe"]["request"]["prompt"], "A red ball, seen from below.")
        self.assertEqual(len(asked), 1)
        path, headers, body = asked[0]
        self.assertEqual((path, headers["Authorization"]), ("/v1/chat/completions", "Bearer word"))
        self.assertEqual(body["messages"][-1], {"role": "user", "content": SMALL["prompt"]})
        self.assertTrue(model["rewriter"])

    def test_off_unless_asked(self):
        job, asked, report, _ = self.run_job(chat("something else"))
        self.assertEqual((job["rewritten_prompt"], asked), (None, []))
        self.assertEqual(report["recipe"]["request"]["prompt"], SMALL["prompt"])

    def test_what_goes_wrong_leaves_the_prompt(self):
        for reply in ((500, b"{}"), (200, b"<html>"), (200, b"{}"), chat(""), chat("x" * 40000)):
            job, asked, report, _ = self.run_job(reply, rewrite_prompt=True)
            self.assertEqual((job["status"], job["rewritten_prompt"]), ("completed", None))
            self.assertTrue(any("rewrite_prompt: the prompt is used as it is" in w for w in job["warnings"]), job["warnings"])
            self.assertEqual(report["recipe"]["request"]["prompt"], SMALL["prompt"])


class ConditionerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.encoder = Server()
        cls.addClassCleanup(cls.encoder.close)
        cls.url = "http://127.0.0.1:%d" % cls.encoder.port
        with open(PICTURE, "rb") as file:
            cls.picture = base64.b64encode(file.read()).decode()

    def frames(self, server, job):
        """What a clip looks and sounds like, without the settings that are written into the file."""
        clip = os.path.join(server.folder, "clip.mp4")
        with open(clip, "wb") as file:
            file.write(server.get(job["url"]).body)
        return subprocess.run(["ffmpeg", "-v", "error", "-i", clip, "-map", "0", "-f", "framemd5", "-"], capture_output=True, check=True).stdout

    def render(self, server, **fields):
        job = server.finished(server.submit(**fields))
        self.assertEqual(job["status"], "completed", job)
        return job

    def test_the_same_clip_as_encoded_here(self):
        server = Server("--conditioner", self.url)
        before = len(self.encoder.get("/v1/videos").json["data"])
        try:
            for fields in ({"seed": 4}, {"seed": 5, "num_frames": 22, "input_reference": self.picture}):
                remote, local = self.render(server, **fields), self.render(self.encoder, **fields)
                self.assertNotIn("encode text", remote["stage_durations"])
                self.assertIn("encode text", local["stage_durations"])
                self.assertEqual(remote["warnings"], local["warnings"])
                self.assertEqual(self.frames(server, remote), self.frames(self.encoder, local))
            self.assertEqual(sorted(os.listdir(os.path.join(server.folder, "data/jobs", remote["id"]))), ["clip.mp4", "report.json"])
            # What was encoded for others is nobody's clip.
            clips = {job["id"] for job in self.encoder.get("/v1/videos").json["data"]}
            self.assertEqual(set(os.listdir(os.path.join(self.encoder.folder, "data/jobs"))), clips)
            self.assertEqual(len(clips), before + 2)
        finally:
            server.close()

    def test_embeddings(self):
        reply = self.encoder.post("/v1/videos/embeddings", {"prompt": "a red ball bounces"})
        self.assertEqual((reply.status, reply.headers["Content-Type"]), (200, "application/octet-stream"))
        size = int.from_bytes(reply.body[:8], "little")
        header = json.loads(reply.body[8:8 + size])
        self.assertEqual(header["prompt_embeds"]["dtype"], "F32")
        self.assertEqual(header["prompt_embeds"]["shape"][0], header["text_token_tags"]["shape"][0])
        self.assertEqual(self.encoder.post("/v1/videos/embeddings", {"prompt": ""}).status, 400)

    def test_falls_back_to_its_own_encoder(self):
        """Not there, refusing, answering nonsense: the prompt is encoded here, and the job says so."""
        stubs = [Stub(lambda reply=reply: reply) for reply in
                 ((500, b"{}"), (200, b"nonsense"), (401, b'{"error": {"message": "a key is needed"}}'))]
        closed = socket.socket()
        closed.bind(("127.0.0.1", 0))
        urls = [stub.url for stub in stubs] + ["http://127.0.0.1:%d" % closed.getsockname()[1]]
        try:
            for url, reason in zip(urls, ("it answered 500", "", "a key is needed", "")):
                server = Server("--conditioner", url, "--conditioner-key", "word")
                try:
                    job = self.render(server)
                    warning = [w for w in job["warnings"] if w.startswith("conditioner: ")]
                    self.assertEqual(len(warning), 1, job["warnings"])
                    self.assertIn(reason, warning[0])
                    self.assertIn("encoded here", warning[0])
                    self.assertIn("encode text", job["stage_durations"])
                finally:
                    server.close()
            self.assertEqual(stubs[0].asked[0][0], "/v1/videos/embeddings")
            self.assertEqual(stubs[0].asked[0][1]["Authorization"], "Bearer word")
            self.assertEqual(stubs[0].asked[0][2]["prompt"], SMALL["prompt"])
        finally:
            closed.close()
            for stub in stubs:
                stub.close()

    def test_parts_on_two_servers(self):
        """One has only the text encoder, the other everything else."""
        folder = tempfile.mkdtemp()
        demo = os.path.join(SOURCE, "models/demo/demo.cmf")
        rest = "transformer,video-decoder,video-encoder,audio-decoder,audio-encoder"
        paths = {}
        for name, without in (("encoder", rest), ("others", "conditioner")):
            paths[name] = os.path.join(folder, name + ".cmf")
            subprocess.run([PROGRAM, "pack", demo, "--without", without, "-o", paths[name]], check=True,
                           stdout=subprocess.DEVNULL)
        encoder = Server(paths["encoder"])
        server = Server(paths["others"], "--conditioner", "http://127.0.0.1:%d" % encoder.port)
        try:
            whole, parts = self.render(self.encoder, seed=6), self.render(server, seed=6)
            self.assertEqual(self.frames(server, parts), self.frames(self.encoder, whole))
            self.assertIn("model: the files have no transformer", encoder.post("/v1/videos", SMALL).error["message"])
            encoder.stop()
            job = server.finished(server.submit())
            self.assertEqual((job["status"], job["error"]["code"]), ("failed", "conditioner_failed"), job)
            self.assertIn("no text encoder of its own", job["error"]["message"])
        finally:
            server.close()
            encoder.close()
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
