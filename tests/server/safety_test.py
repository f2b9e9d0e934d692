"""What the server must not do for strangers, and what slow or rude clients must not do to it."""
import base64
import threading

from harness import *


class Keys(ServerTest):
    flags = ("--api-key", "secret")

    def test_key(self):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}, {"X-API-Key": "secre"}):
            reply = self.server.get("/v1/videos", headers=headers)
            self.refused(reply, 401, "invalid_api_key")
            self.assertEqual(reply.headers["WWW-Authenticate"], "Bearer")
        for headers in ({"Authorization": "Bearer secret"}, {"X-API-Key": "secret"}):
            self.assertEqual(self.server.get("/v1/videos", headers=headers).status, 200)
        self.refused(self.server.post("/v1/videos", SMALL), 401)
        self.refused(self.server.get("/metrics"), 401)
        for path in ("/", "/ready", "/health", "/openapi.json"):
            self.assertEqual(self.server.get(path).status, 200)


class Files(ServerTest):
    @classmethod
    def make_flags(cls):
        cls.media, cls.out = os.path.join(cls.folder, "media"), os.path.join(cls.folder, "out")
        os.makedirs(os.path.join(cls.media, "inner"))
        os.mkdir(cls.out)
        shutil.copy(PICTURE, os.path.join(cls.media, "inner/a.png"))
        shutil.copy(PICTURE, os.path.join(cls.folder, "secret.png"))
        os.symlink("inner/a.png", os.path.join(cls.media, "inside.png"))
        os.symlink("../secret.png", os.path.join(cls.media, "outside.png"))
        os.symlink("/etc/passwd", os.path.join(cls.media, "passwd"))
        os.symlink(cls.folder, os.path.join(cls.out, "link"))
        os.mkfifo(os.path.join(cls.media, "pipe"))
        return ["--media-root", cls.media, "--output-root", cls.out]

    def take(self, path, **fields):
        return self.server.post("/v1/videos/estimate", {"prompt": "x", "image_path": path, **fields})

    def test_media_root(self):
        for path in ("inner/a.png", "inside.png", os.path.join(self.media, "inner/a.png"), "inner/../inner/a.png",
                     "file://" + self.media + "/inner/a.png"):
            self.assertEqual(self.take(path).status, 200, path)
        for path in ("../secret.png", "outside.png", "passwd", "/etc/passwd", "inner/../../secret.png",
                     os.path.join(self.folder, "secret.png"), "file:///etc/passwd", self.media + "/../secret.png"):
            self.refused(self.take(path), 403, "path_not_allowed", "image_path")
        for path in ("inner", "pipe", "missing.png", "a\u0000b"):
            self.refused(self.take(path), 400)

    def test_output_root(self):
        for output in ("../a.mp4", "/tmp/a.mp4", "link/a.mp4", "link/../../a.mp4"):
            self.refused(self.server.post("/v1/videos", {**SMALL, "output": output}), 403, "path_not_allowed", "output")
        for output in ("missing/a.mp4", "link", "..", "."):
            self.assertIn(self.server.post("/v1/videos", {**SMALL, "output": output}).status, (400, 403), output)
        self.assertEqual(sorted(os.listdir(self.out)), ["link"])

    def test_paths_need_a_folder(self):
        server = Server()
        try:
            self.refused(server.post("/v1/videos", {**SMALL, "image_path": "a.png"}), 403, "path_not_allowed")
            self.refused(server.post("/v1/videos", {**SMALL, "output": "a.mp4"}), 403, "path_not_allowed")
        finally:
            server.close()

    def test_urls_are_off(self):
        self.refused(self.take("http://127.0.0.1:%d/" % self.server.port), 403, "urls_not_allowed", "image_path")

    def test_no_private_addresses(self):
        server = Server("--allow-urls")
        try:
            for host in ("127.0.0.1:%d" % server.port, "localhost", "10.0.0.1", "192.168.1.1", "169.254.169.254", "[::1]",
                         "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "100.64.0.1", "[fd00::1]"):
                reply = server.post("/v1/videos", {**SMALL, "image_path": "http://%s/a.png" % host})
                self.refused(reply, 400, "fetch_failed", "image_path")
            self.refused(server.post("/v1/videos", {**SMALL, "image_path": "ftp://example.org/a"}), 400)
        finally:
            server.close()

    def test_ids_are_not_paths(self):
        for job_id in ("..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "video_x%00", "a" * 500):
            self.assertIn(self.server.get("/v1/videos/%s/content" % job_id).status, (400, 404), job_id)
        self.refused(self.server.get("/..%2fapp.js"), 404)
        self.assertEqual(self.server.get("/v1/videos/" + "a" * 2000).status, 414)


class Sites(ServerTest):
    flags = ("--allow-host", "h3.example")

    def test_other_sites(self):
        own = "127.0.0.1:%d" % self.server.port
        for host in ("evil.example", "localhost.evil.example", ""):
            self.refused(self.server.get("/v1/videos", headers={"Host": host}), 403, "host_not_allowed")
        for host in (own, "localhost", "[::1]:80", "h3.example"):
            self.assertEqual(self.server.get("/v1/videos", headers={"Host": host}).status, 200)
        for origin in ("http://evil.example", "null", "http://localhost:1"):
            self.refused(self.server.post("/v1/videos", SMALL, headers={"Origin": origin}), 403, "origin_not_allowed")
        self.assertEqual(self.server.get("/v1/videos", headers={"Origin": "http://" + own}).status, 200)
        self.assertIsNone(self.server.get("/v1/videos").headers["Access-Control-Allow-Origin"])


class RudeClients(ServerTest):
    flags = ("--max-body", "1", "--max-streams", "3")
    env = {"H3_TEST_BLOCK_MS": "200"}

    def status(self, data, timeout=30):
        answer = self.server.raw(data, timeout)
        return int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.1 ") else None

    def test_malformed(self):
        host = b"Host: localhost\r\n"
        for head in (b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/3.0\r\n\r\n", b"NOPE / HTTP/1.1\r\n\r\n",
                     b"POST /v1/videos HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n",
                     b"POST /v1/videos HTTP/1.1\r\n" + host + b"Content-Length: 1x\r\n\r\n",
                     b"POST /v1/videos HTTP/1.1\r\n" + host + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"):
            self.assertEqual(self.status(head), 400, head)
        ranges = b"Range: bytes=" + b"0-0," * 1900 + b"0-0\r\n"
        self.status(b"GET /health HTTP/1.1\r\n" + host + ranges + b"Connection: close\r\n\r\n")
        self.status(b"GET /health HTTP/1.1\r\n" + (b"X: " + b"a" * 4000 + b"\r\n") * 100 + b"\r\n")
        self.status(b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n")
        self.assertEqual(self.server.get("/health").status, 200)

    def test_large_bodies(self):
        self.refused(self.server.post("/v1/videos", {**SMALL, "prompt": "x" * (2 << 20)}), 413, "body_too_large")
        chunk = b"%x\r\n" % (1 << 20) + b"x" * (1 << 20) + b"\r\n"
        head = b"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.assertEqual(self.status(head + chunk * 3), 413)
        declared = b"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
        self.assertEqual(self.status(declared), 413)

    def test_a_slow_head_is_cut_off(self):
        start = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.server.port), 30) as slow:
            slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            closed = False
            while time.monotonic() - start < 25 and not closed:
                try:
                    slow.sendall(b"X-A: b\r\n")
                    slow.settimeout(0.5)
                    closed = slow.recv(4096) is not None
                except socket.timeout:
                    pass
                except ConnectionError:
                    closed = True
        self.assertTrue(closed)
        self.assertLess(time.monotonic() - start, 16)

    def test_many_idle_connections_do_not_shut_others_out(self):
        idle = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(150)]
        try:
            start = time.monotonic()
            self.assertEqual(self.server.get("/health").status, 200)
            self.assertLess(time.monotonic() - start, 2 * SLOW)
        finally:
            for connection in idle:
                connection.close()

    def test_half_closed_client_is_answered(self):
        with socket.create_connection(("127.0.0.1", self.server.port), 30) as half:
            half.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            half.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := half.recv(4096):  # head and body may come apart
                answer += piece
            self.assertIn(b'"status":"ok"', answer)

    def test_streams_are_limited(self):
        job_id = self.server.submit(steps=8)
        self.server.in_stage(job_id, "denoise")
        open_streams = []
        for _ in range(3):
            connection = self.server.connect()
            connection.request("GET", "/v1/videos/%s/events" % job_id)
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            open_streams.append((connection, response))
        refused = self.server.get("/v1/videos/%s/events" % job_id)
        self.refused(refused, 503, "too_many_streams")
        self.assertEqual(refused.headers["Retry-After"], "5")
        for connection, response in open_streams:
            response.close()
            connection.close()
        self.server.until(lambda: self.server.request("HEAD", "/v1/videos/%s/events" % job_id).status == 200, 20, "free stream")
        self.server.post("/v1/videos/%s/cancel" % job_id)
        self.server.finished(job_id)

    def test_expect_continue(self):
        head = b"POST /v1/videos/estimate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\nExpect: 100-continue\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.server.port), 30) as client:
            client.sendall(head)
            self.assertTrue(client.recv(4096).startswith(b"HTTP/1.1 100"))
            client.sendall(b'{"prompt": "x"}')
            self.assertTrue(client.recv(4096).startswith(b"HTTP/1.1 200"))
        too_large = head.replace(b": 15", b": 9999999")
        self.assertEqual(self.status(too_large), 413)


if __name__ == "__main__":
    main()
