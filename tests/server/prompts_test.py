"""What the server says before anything is made: hints about prompts, and estimates of time and memory."""
from harness import *


class Lint(ServerTest):
    def lint(self, prompt, **fields):
        reply = self.server.post("/v1/lint", {"prompt": prompt, **fields})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json

    def codes(self, prompt, **fields):
        return {hint["code"]: hint for hint in self.lint(prompt, **fields)["hints"]}

    def test_tokens_are_those_of_the_run(self):
        prompt = "A red ball bounces. <d>[English] hold on</d><|cutoff|> 中文 café"
        found = self.lint(prompt)
        self.assertEqual((found["object"], found["token_limit"]), ("prompt.lint", 262144))
        self.assertEqual(found["tokens"], found["prompt_tokens"])
        job_id = self.server.submit(prompt=prompt)
        self.server.finished(job_id)
        report = self.server.get("/v1/videos/%s/report" % job_id).json
        self.assertEqual(found["tokens"], report["text_rows"])
        self.assertEqual(report["resolved"]["prompt_tokens"], report["text_rows"])

    def test_keyframes_count(self):
        bare = self.lint("a red ball", size="512x288", keyframes=0)
        two = self.lint("a red ball", size="512x288", keyframes=2)
        self.assertGreater(two["tokens"], bare["tokens"] + 2 * (16 * 9 + 2))
        self.assertEqual(two["prompt_tokens"], bare["tokens"])
        with open(PICTURE, "rb") as file:
            body, headers = multipart([("prompt", "a red ball"), ("size", "512x288"), ("num_frames", "5"),
                                       ("input_reference", ("a.png", file.read(), "image/png"))])
        one = self.lint("a red ball", size="512x288", keyframes=1)
        estimate = self.server.post("/v1/videos/estimate", body, headers=headers).json
        self.assertEqual(estimate["prompt_tokens"], one["tokens"])

    def test_fields_are_read_as_in_a_request(self):
        want = self.lint("a red ball", size="512x288", keyframes=1)
        for size in ("512*288", "512X288"):
            self.assertEqual(self.lint("a red ball", size=size, keyframes=1), want)
        most = self.server.get("/v1/models").json["data"][0]["limits"]["references"]["total"]
        self.assertNotIn("unknown_tag", self.codes("see <Picture %d>" % most, pictures=most))
        error = self.refused(self.server.post("/v1/lint", {"prompt": "x", "pictures": most + 1}), 400, "invalid_value", "pictures")
        self.assertIn(str(most), error["allowed"])

    def test_hints(self):
        found = self.codes("He says \"one two three four five six\" <|scene|> At 00:09.000 <Picture 3>", seconds=2, keyframes=1)
        self.assertIn("<|cutoff|>", found["unknown_token"]["message"])
        self.assertIn("6 spoken words take about 2.4 s", found["speech_too_long"]["message"])
        self.assertEqual(found["time_after_end"]["found"], "00:09.000")
        self.assertIn("<Picture 3>", found["unknown_tag"]["message"])
        self.assertEqual({h["level"] for h in found.values()}, {"warning"})
        self.assertIn("write <d>", self.codes("<D>hold on")["unknown_token"]["message"])
        self.assertEqual(self.codes("<|image_pad|>")["pad_token"]["level"], "error")
        self.assertEqual(self.codes("see <Picture 3>, and hear <Audio 1>", pictures=3, audios=1).get("unknown_tag"), None)
        self.assertEqual(self.lint("")["hints"], [])

    def test_warnings_stay_with_the_job(self):
        prompt = "a red ball <|scene|> beeps"
        estimate = self.server.post("/v1/videos/estimate", {**SMALL, "prompt": prompt}).json
        self.assertTrue(any("<|scene|>" in w for w in estimate["warnings"]))
        job_id = self.server.submit(prompt=prompt)
        self.server.finished(job_id)
        self.assertTrue(any("<|scene|>" in w for w in self.server.job(job_id)["warnings"]))
        self.assertTrue(any("<|scene|>" in w for w in self.server.get("/v1/videos/%s/report" % job_id).json["warnings"]))

    def test_refusals(self):
        for fields, param in (({"size": "big"}, "size"), ({"size": "8x8"}, "size"), ({"seconds": -1}, "seconds"), ({"seconds": "x"}, "seconds"),
                              ({"num_frames": 100000}, "num_frames"), ({"keyframes": 3}, "keyframes"), ({"audios": 1.5}, "audios")):
            self.refused(self.server.post("/v1/lint", {"prompt": "x", **fields}), 400, "invalid_value", param)
        self.refused(self.server.post("/v1/lint", {"prompt": "x", "steps": 3}), 400, "unknown_field", "steps")
        long = self.server.post("/v1/lint", {"prompt": "x" * (5 << 20)})
        self.assertEqual([h["code"] for h in long.json["hints"]], ["too_many_tokens"])
        self.refused(self.server.post("/v1/videos/estimate", {"prompt": "x" * (5 << 20)}), 400, "invalid_value", "prompt")


class Estimates(ServerTest):
    def estimate(self, **fields):
        reply = self.server.post("/v1/videos/estimate", {**SMALL, **fields})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json

    def planned(self, **fields):
        """Once the worker has measured its machine."""
        return self.server.until(lambda: (lambda e: e if "fits" in e else None)(self.estimate(**fields)), 60, "a plan")

    def test_before_and_after_the_first_clip(self):
        first = self.planned(size="64x64", steps=40)
        self.assertEqual(first["basis"], "the speed of this machine")
        self.assertGreater(first["work_seconds"], 0)
        self.assertEqual(set(first["stages"]), {"prepare", "denoise", "decode"})
        self.assertTrue(first["fits"])
        memory = first["memory"]["ram"]
        self.assertEqual(first["peak_memory_mb"], round(memory["peak_bytes"] / (1 << 20)))
        self.assertGreater(memory["available_bytes"], memory["peak_bytes"])
        self.assertGreater(first["disk_bytes"], 0)
        longer = self.planned(size="64x64", steps=80)
        self.assertAlmostEqual(longer["stages"]["denoise"] / first["stages"]["denoise"], 2, delta=0.2)
        larger = self.planned(size="256x256", num_frames=39, steps=40)
        self.assertGreater(larger["memory"]["ram"]["peak_bytes"], memory["peak_bytes"])
        self.assertGreater(larger["work_seconds"], first["work_seconds"])
        self.server.finished(self.server.submit(size="64x64", steps=4))
        self.assertEqual(self.estimate(size="64x64", steps=4)["basis"], "clips of this size and length")

    def test_memory_is_that_of_the_plan_command(self):
        """The same sum as `h3 plan`, but for a worker that keeps what it loaded."""
        ours = self.planned(size="128x128", num_frames=39)["memory"]["ram"]
        out = subprocess.run([PROGRAM, "plan", "-p", SMALL["prompt"], "--size", "128x128", "--frames", "39", "--steps", "1", "--threads", "1",
                              "--json"], capture_output=True, text=True, check=True, env={k: v for k, v in os.environ.items() if not k.startswith("H3_")})
        theirs = json.loads(out.stdout)["ram"]
        parts = {part["name"]: part["bytes"] for part in theirs["parts"]}
        for part in ours["parts"]:
            if part["name"] in ("transformer", "text encoder", "video VAE", "audio VAE"):
                self.assertAlmostEqual(part["bytes"] / (1 << 20), parts[part["name"]] / (1 << 20), delta=1, msg=part["name"])
        self.assertGreaterEqual(ours["peak_bytes"] * 1.02, theirs["peak_bytes"])

    def test_while_the_worker_is_busy(self):
        self.planned()
        job_id = self.server.submit(size="128x128", num_frames=73, steps=500)
        self.server.in_stage(job_id, "denoise")
        estimate = self.estimate()
        self.assertIn("peak_memory_mb", estimate)
        self.assertEqual(estimate["jobs_ahead"], 1)
        self.server.post("/v1/videos/%s/cancel" % job_id)

    def test_what_does_not_fit_is_told(self):
        """Of the largest clip there is, and as soon as of a small one: nothing in proportion to its pixels is made or moved."""
        self.planned()
        start = time.monotonic()
        estimate = self.estimate(size="4096x4096", num_frames=1450)
        self.assertLess(time.monotonic() - start, 20 * SLOW)
        memory = estimate["memory"]["ram"]
        self.assertGreater(memory["peak_bytes"], 60 << 30)
        self.assertEqual(estimate["fits"], memory["peak_bytes"] <= memory["available_bytes"])
        warnings = [w for w in estimate["warnings"] if w.startswith("memory:")]
        self.assertEqual(len(warnings), 0 if estimate["fits"] else 1, estimate["warnings"])
        for warning in warnings:
            self.assertRegex(warning, r"needs .* of RAM during .* and .* is available")


class MemoryLimit(ServerTest):
    """`h3 serve --ram`: a clip above it ends with the limit's name, and the next one runs."""
    flags = ("--ram", "400M")

    def test_what_is_above_the_limit_fails_by_name(self):
        large = self.server.submit(size="1024x1024", num_frames=124)
        job = self.server.finished(large)
        self.assertEqual(job["status"], "failed")
        self.assertIn("--ram", job["error"]["message"])
        self.assertEqual(self.server.finished(self.server.submit())["status"], "completed")
        estimate = self.server.post("/v1/videos/estimate", {**SMALL, "size": "1024x1024", "num_frames": 124}).json
        self.assertFalse(estimate["fits"])
        self.assertEqual(estimate["memory"]["ram"]["available_bytes"], 400 << 20)


if __name__ == "__main__":
    main()
