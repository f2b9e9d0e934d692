"""Every endpoint and every spelling of a field, against the real program with the demo model."""
import base64
import json
import os

from harness import *


class Endpoints(ServerTest):
    @classmethod
    def make_flags(cls):
        os.mkdir(os.path.join(cls.folder, "out"))
        return ["--output-root", os.path.join(cls.folder, "out")]

    def test_docs_are_current(self):
        page = subprocess.run([PROGRAM, "serve", "--markdown"], capture_output=True, text=True).stdout
        with open(os.path.join(SOURCE, "docs/http.md")) as file:
            self.assertEqual(page, file.read(), "run: h3 serve --markdown > docs/http.md")

    def test_openapi_lists_the_documented_endpoints(self):
        api = self.server.get("/openapi.json").json
        with open(os.path.join(SOURCE, "docs/http.md")) as file:
            documented = set(re.findall(r"`(GET|POST|DELETE) (/\S*)`", file.read()))
        described = {(method.upper(), path) for path, methods in api["paths"].items() for method in methods}
        self.assertEqual(documented, described)
        self.assertEqual(api["components"]["schemas"]["ClipRequest"]["required"], ["prompt"])

    def test_server_endpoints(self):
        self.assertEqual(self.server.get("/health").json["status"], "ok")
        ready = self.server.get("/ready").json
        self.assertEqual((ready["ready"], ready["available_turbos"], ready["current_turbo"]), (True, [], None))
        model = self.server.get("/v1/models").json["data"][0]
        self.assertEqual(model["id"], "demo")
        self.assertEqual({c["aspect_ratio"] for c in model["canvases"]}, {"21:9", "16:9", "4:3", "1:1", "3:4", "9:16"})
        for canvas in model["canvases"]:
            self.assertEqual((canvas["width"] % 32, canvas["height"] % 32), (0, 0))
        for length in model["lengths"]:
            self.assertEqual((length["num_frames"] - 5) % 17, 0)
        self.assertIn("h3_jobs_total", self.server.get("/metrics").body.decode())
        page = self.server.get("/")
        self.assertEqual(page.headers["Content-Type"], "text/html; charset=utf-8")
        self.assertIn("default-src 'self'", page.headers["Content-Security-Policy"])

    def test_life_of_a_job(self):
        job = self.server.post("/v1/videos", {**SMALL, "seed": 9}).json
        self.assertEqual((job["object"], job["status"], job["seed"], job["size"]), ("video", "queued", 9, "32x32"))
        done = self.server.finished(job["id"])
        self.assertEqual(done["status"], "completed", done)
        self.assertEqual(done["progress"], 100)
        self.assertEqual(done["evaluations"], {"run": 1, "reused": 0, "forecast": 0})
        self.assertGreater(done["inference_time_s"], 0)
        self.assertIn("denoise", done["stage_durations"])
        base = "/v1/videos/" + job["id"]
        clip = self.server.get(base + "/content")
        self.assertEqual((clip.status, clip.headers["Content-Type"]), (200, done["media_type"]))
        self.assertEqual(len(clip.body), done["bytes"])
        part = self.server.get(base + "/content", headers={"Range": "bytes=4-11"})
        self.assertEqual((part.status, part.body), (206, clip.body[4:12]))
        tail = self.server.get(base + "/content", headers={"Range": "bytes=-5"})
        self.assertEqual((tail.status, tail.body), (206, clip.body[-5:]))
        past = self.server.get(base + "/content", headers={"Range": "bytes=99999999-"})
        self.assertEqual((past.status, past.headers["Content-Range"]), (416, "bytes */%d" % done["bytes"]))
        self.assertEqual(self.server.get(base + "/report").json["recipe"]["request"]["seed"], 9)
        head = self.server.request("HEAD", base + "/content")
        self.assertEqual((head.status, head.body, head.headers["Content-Length"]), (200, b"", str(done["bytes"])))
        self.refused(self.server.post(base + "/cancel"), 409, "already_finished")
        self.refused(self.server.get(base + "/preview"), 404)
        gone = self.server.request("DELETE", base)
        self.assertEqual(gone.json, {"id": job["id"], "object": "video.deleted", "deleted": True})
        for path in ("", "/content", "/events", "/report"):
            self.refused(self.server.get(base + path), 404, "not_found")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "data/jobs", job["id"])))

    def test_sync_answers_with_the_clip(self):
        reply = self.server.post("/v1/videos/sync", SMALL)
        self.assertEqual(reply.status, 200, reply.body[:300])
        self.assertGreater(float(reply.headers["x-inference-time-s"]), 0)
        self.assertGreater(float(reply.headers["x-peak-memory-mb"]), 0)
        self.assertIn("denoise", json.loads(reply.headers["X-Stage-Durations"]))
        stored = self.server.get("/v1/videos/%s/content" % reply.headers["X-Video-Id"])
        self.assertEqual(stored.body, reply.body)

    def test_what_the_device_lacks(self):
        """Refused when it is asked for, not by a job that fails later."""
        for field, value in (("attention", "8bit"), ("vae_precision", "fp8"), ("precision", "fp8")):
            error = self.refused(self.server.post("/v1/videos", {**SMALL, field: value}), 400, "invalid_value", field)
            self.assertTrue(error["message"].startswith(field + ": "), error)

    def test_hot_runtime_body(self):
        body = {"prompt": "x", "output": "clip.mp4", "width": 32, "height": 32, "frames": 5, "seed": 3, "turbo": None, "steps": 1}
        reply = self.server.post("/generate", body)
        self.assertEqual(reply.status, 200, reply.body)
        self.assertEqual((reply.json["status"], reply.json["output"], reply.json["seed"]), ("completed", "clip.mp4", 3))
        with open(os.path.join(self.folder, "out/clip.mp4"), "rb") as file:
            self.assertEqual(file.read(), self.server.get(reply.json["url"]).body)
        for turbo in ("none", None, False):
            self.assertEqual(self.server.post("/v1/videos/estimate", {**SMALL, "turbo": turbo}).status, 200)
        self.refused(self.server.post("/generate", {**body, "turbo": "4step"}), 400, "invalid_value", "turbo")

    def test_list(self):
        ids = [self.server.submit(seed=i) for i in range(3)]
        for job_id in ids:
            self.server.finished(job_id)
        page = self.server.get("/v1/videos?limit=2").json
        self.assertEqual((page["object"], len(page["data"]), page["has_more"]), ("list", 2, True))
        self.assertEqual(page["first_id"], page["data"][0]["id"])
        rest = self.server.get("/v1/videos?limit=2&after=" + page["last_id"]).json
        self.assertNotIn(page["last_id"], [job["id"] for job in rest["data"]])
        self.assertEqual(self.server.get("/v1/videos?status=queued").json["data"], [])
        for query in ("limit=0", "limit=x", "order=up", "status=done", "after=nobody"):
            self.refused(self.server.get("/v1/videos?" + query), 400, "invalid_value", query.split("=")[0])

    def test_estimate(self):
        self.server.finished(self.server.submit())
        estimate = self.server.post("/v1/videos/estimate", SMALL).json
        self.assertGreater(estimate["work_seconds"], 0)
        self.assertEqual(estimate["basis"], "clips of this size and length")
        self.assertEqual((estimate["width"], estimate["num_frames"]), (32, 5))

    def test_events_in_order(self):
        job_id = self.server.submit(steps=3)
        seen = list(events(self.server, job_id))
        names = [name for name, _ in seen]
        self.assertEqual(names[0] if len(names) > 1 else "status", "status")
        self.assertEqual(names[-1], "completed")
        self.assertEqual(names.count("completed"), 1)
        progress = [data["progress"] for name, data in seen if name == "progress"]
        self.assertEqual(progress, sorted(progress))
        self.assertEqual(seen[-1][1]["id"], job_id)
        again = list(events(self.server, job_id))  # of a job that has ended: the end, at once
        self.assertEqual([name for name, _ in again], ["completed"])

    def test_previews(self):
        job_id = self.server.submit(size="64x64", steps=60)
        previews = []
        for name, data in events(self.server, job_id):
            if name == "preview":
                previews.append(data)
                shown = self.server.get("/v1/videos/%s/preview" % job_id)
                if shown.status == 200:  # not over yet
                    self.assertEqual((shown.headers["Content-Type"], shown.body[:8]), ("image/png", b"\x89PNG\r\n\x1a\n"))
        self.assertGreaterEqual(len(previews), 1)
        steps = [preview["step"] for preview in previews]
        self.assertEqual(steps, sorted(set(steps)))
        for preview in previews:
            self.assertEqual((preview["type"], preview["steps"]), ("image/png", 60))
            self.assertEqual(base64.b64decode(preview["data"])[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "data/jobs", job_id))), ["clip.mp4", "report.json"])

    def test_wrong_paths_and_methods(self):
        self.refused(self.server.get("/v1/nothing"), 404, "not_found")
        self.assertEqual(self.refused(self.server.get("/generate"), 405)["allowed"], "POST")
        self.assertEqual(self.server.request("OPTIONS", "/v1/videos").headers["Allow"], "POST, GET")
        self.refused(self.server.request("PUT", "/v1/videos", b"{}"), 405)


class Fields(ServerTest):
    """`estimate` reads a request exactly as `videos` does and renders nothing."""

    def resolved(self, **fields):
        reply = self.server.post("/v1/videos/estimate", {"prompt": "a red ball bounces", **fields})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json

    def wrong(self, param, code="invalid_value", **fields):
        error = self.refused(self.server.post("/v1/videos/estimate", {"prompt": "a red ball bounces", **fields}), 400, code, param)
        self.assertIn(param, error["message"])
        return error

    def test_size_spellings(self):
        for fields in ({"size": "96x64"}, {"size": "96*64"}, {"width": 96, "height": 64}, {"target_shape": [64, 96]},
                       {"resolution": "96x64"}, {"width": "96", "height": "64"}, {"width": 96, "height": 64, "aspect_ratio": "3:2"}):
            self.assertEqual(self.resolved(**fields)["size"], "96x64", fields)
        wide = self.resolved(aspect_ratio="16:9")
        for fields in ({"ratio": "16:9"}, {"target": {"aspect_ratio": "16:9"}}, {"aspect": "16:9"}):
            self.assertEqual(self.resolved(**fields)["size"], wide["size"], fields)
        for fields in ({"target": {"short_edge": 96, "aspect_ratio": "1:1"}}, {"short_edge": 96, "aspect_ratio": "1:1"},
                       {"resolution": "96p", "aspect_ratio": "1:1"}):
            self.assertEqual(self.resolved(**fields)["size"], "96x96", fields)
        self.assertEqual(self.resolved(size="100x70")["size"], "96x64")
        for value in ("big", "96", "x64", "96x", 7):
            self.wrong("size", size=value)
        self.wrong("width", width=5, height=64)
        self.wrong("ratio", ratio="99:1")

    def test_length_spellings(self):
        for fields in ({"seconds": 1}, {"seconds": "1"}, {"duration": 1}, {"duration_seconds": 1}, {"target": {"duration_seconds": 1}},
                       {"extra_params": {"duration": 1}}, {"extra_params": "{\"duration\": 1}"}, {"num_frames": 24}, {"frames": 24},
                       {"video_frames": 24}, {"target_video_length": 24}, {"num_frames": 24, "seconds": 4}):
            self.assertEqual(self.resolved(**fields)["num_frames"], 39, fields)
        self.wrong("duration", duration=-1)
        self.wrong("frames", frames=100000)
        self.wrong("frames", frames=2.5)
        self.wrong("seconds", strict=True, seconds=4, num_frames=24)

    def test_steps_seed_and_shift(self):
        for fields in ({"steps": 3}, {"num_inference_steps": 3}, {"infer_steps": 3}, {"sample_params": {"sample_steps": 3}}):
            self.assertEqual(self.resolved(**fields)["num_inference_steps"], 3, fields)
        for fields in ({"flow_shift": 9}, {"sample_params": {"flow_shift": 9}}, {"video_shift": 9}):
            self.assertEqual(self.resolved(**fields)["resolved"]["video_shift"]["value"], "9", fields)
        for fields in ({"audio_flow_shift": 5}, {"extra_params": {"audio_flow_shift": 5}}):
            self.assertEqual(self.resolved(**fields)["resolved"]["audio_shift"]["value"], "5", fields)
        for seed, want in ((7, "7"), ("18446744073709551615", "18446744073709551615"), ("12", "12")):
            self.assertEqual(self.resolved(seed=seed)["resolved"]["seed"]["value"], want)
        for seed in (-1, None, "-1"):
            self.assertEqual(self.resolved(seed=seed)["resolved"]["seed"]["from"], "drawn")
        for seed in (-2, 1.5, "x", [1]):
            self.wrong("seed", seed=seed)
        self.wrong("infer_steps", infer_steps=0)
        self.wrong("steps", "conflict", num_inference_steps=3, steps=4)

    def test_pictures(self):
        with open(PICTURE, "rb") as file:
            png = file.read()
        plain = base64.b64encode(png).decode()
        url = "data:image/png;base64," + plain
        for name in ("input_reference", "first_frame_image", "init_image", "image_path", "first_frame", "image"):
            self.assertEqual(self.resolved(**{name: url})["resolved"]["task"], "fl2va", name)
        for name in ("last_frame_image", "end_image", "last_frame_path", "last_frame"):
            both = self.resolved(input_reference=url, **{name: plain})
            self.assertIn("last_frame.fit", both["resolved"], name)
        for value in ({"image_url": url}, {"image_url": {"url": url}}, {"b64_json": plain}, {"url": url}, plain):
            self.assertEqual(self.resolved(input_reference=value)["resolved"]["task"], "fl2va")
        official = [{"type": "image", "uri": url, "role": "keyframe", "frame_index": 0},
                    {"type": "image", "uri": url, "role": "keyframe", "frame_index": -1}]
        both = self.resolved(task="fl2va", conditions=official)["resolved"]
        self.assertTrue("first_frame.fit" in both and "last_frame.fit" in both)
        lone = self.resolved(conditions=official[1:])["resolved"]
        self.assertTrue("first_frame.fit" not in lone and "last_frame.fit" in lone)
        self.wrong("input_reference", "conflict", input_reference={"b64_json": plain, "url": url})
        self.wrong("conditions[0].uri", "conflict", input_reference=url, conditions=official[:1])
        self.wrong("input_reference", "invalid_media", input_reference="data:image/png;base64,AAAA")
        self.wrong("input_reference", "invalid_media", input_reference=plain[:400] + "!" * 900)
        self.wrong("conditions[0].extra", "unknown_field", conditions=[{"type": "image", "uri": url, "extra": 1}])
        self.wrong("conditions[0].frame_index", "invalid_value", conditions=[{"type": "image", "uri": url, "frame_index": 7}])
        self.wrong("conditions[0].role", "unsupported", conditions=[{"type": "audio", "uri": url, "role": "keyframe"}])
        self.wrong("task", task="t2va", input_reference=url)
        self.wrong("task", task="fl2va")

    def test_ten_megabyte_keyframe(self):
        # A PPM of 10.5 MB, as an upload and as base64.
        width, height = 2000, 1750
        ppm = b"P6\n%d %d\n255\n" % (width, height) + os.urandom(1 << 20) * 10 + bytes(width * height * 3 - (10 << 20))
        body, headers = multipart([("prompt", "x"), ("input_reference", ("big.ppm", ppm, "image/x-portable-pixmap"))])
        reply = self.server.post("/v1/videos/estimate", body, headers=headers)
        self.assertEqual(reply.status, 200, reply.body[:300])
        encoded = self.server.post("/v1/videos/estimate", {"prompt": "x", "input_reference": base64.b64encode(ppm).decode()})
        self.assertEqual(encoded.json["size"], reply.json["size"])
        body, headers = multipart([(k, v) for k, v in SMALL.items()] + [("input_reference", ("big.ppm", ppm, "image/x-portable-pixmap"))])
        job = self.server.finished(self.server.post("/v1/videos", body, headers=headers).json["id"])
        self.assertEqual(job["status"], "completed", job)
        self.assertEqual(self.server.get(job["inputs"]["first_frame"]).body, ppm)

    def test_frame_indices(self):
        with open(PICTURE, "rb") as file:
            plain = base64.b64encode(file.read()).decode()
        one, two = {"input_references": [plain]}, {"input_references": [plain, plain]}
        for fields, places in (({**one, "frame_indices": [-1]}, "last"), ({**one, "frame_indices": 0}, "first"), ({**two, "frame_indices": [-1, 0]}, "both"),
                               ({"frame_indices": [-1], **one}, "last")):
            found = self.resolved(**fields)["resolved"]
            self.assertEqual(("first_frame.fit" in found, "last_frame.fit" in found), (places != "last", places != "first"), fields)
        body, headers = multipart([("prompt", "x"), ("frame_indices", "-1"), ("input_references", plain)])
        self.assertIn("last_frame.fit", self.server.post("/v1/videos/estimate", body, headers=headers).json["resolved"])
        # A picture whose name says which frame it is has no index.
        lone = self.resolved(first_frame_image=plain, input_references=[plain], frame_indices=[-1])["resolved"]
        self.assertTrue("first_frame.fit" in lone and "last_frame.fit" in lone)
        self.assertIn("last_frame.fit", self.resolved(input_reference=plain, extra_params={"frame_indices": [-1]})["resolved"])
        for fields in ({"first_frame_image": plain, "frame_indices": [-1]},
                       {"first_frame_image": plain, "last_frame_image": plain, "frame_indices": [-1, 0]}):
            self.wrong("frame_indices", **fields)
        for fields in ({"input_references": [plain], "first_frame_image": plain}, {"first_frame_image": plain, "input_references": [plain]},
                       {"last_frame_image": plain, "input_references": [plain], "frame_indices": [-1]}):
            self.wrong(next(reversed([name for name in fields if name != "frame_indices"])), "conflict", **fields)
        for fields in ({"frame_indices": [0]}, {**one, "frame_indices": [0, -1]}, {**two, "frame_indices": [-1]}, {**two, "frame_indices": [0, 0]},
                       {"last_frame_image": plain, "frame_indices": [0]}):
            self.wrong("frame_indices", **fields)
        self.assertEqual(self.resolved(frame_indices=[])["resolved"]["task"], "t2va")

    def test_forms_are_echoed_with_their_types(self):
        fields = {"prompt": "a red ball", "strict": "true", "audio": "false", "exact": "1", "num_frames": "22", "flow_shift": "9.5", "fps": "24", "seed": "5"}
        body, headers = multipart(list(fields.items()))
        job = self.server.post("/v1/videos", body, headers=headers).json
        self.server.request("DELETE", "/v1/videos/" + job["id"])
        self.assertEqual(job["request"], {"prompt": "a red ball", "strict": True, "audio": False, "exact": True, "num_frames": 22, "flow_shift": 9.5,
                                          "fps": 24, "seed": "5"})

    def test_neutral_fields(self):
        self.assertEqual(self.resolved(guidance_scale=1, negative_prompt="", fps=24, lora=[], ref_images=[])["warnings"], [])
        warned = self.resolved(guidance_scale=7.5, negative_prompt="blurry", enable_upscaling=True)["warnings"]
        for name in ("guidance_scale", "negative_prompt", "enable_upscaling"):
            self.assertTrue(any(w.startswith(name) for w in warned), warned)
            self.wrong(name, strict=True, **{name: {"guidance_scale": 7.5, "negative_prompt": "blurry"}.get(name, True)})
        self.assertIn("fit: not used, no keyframe is given", self.resolved(fit="cover")["warnings"])
        for name, value in (("lora", [{"path": "x"}]), ("n", 2), ("source_audio", "x"),
                            ("video_noise_mask", [0]), ("preset", "quick")):
            self.wrong(name, **{name: value})

    def test_unknown_fields(self):
        self.assertIn("did you mean seconds?", self.wrong("secnods", "unknown_field", secnods=2)["message"])
        for param, fields in (("target.colour", {"target": {"colour": 7}}), ("colour", {"colour": 7}), ("image.colour", {"image": {"colour": 7}}),
                              ("conditions[0].colour", {"conditions": [{"colour": 7}]}), ("ref_videos[0].colour", {"ref_videos": [{"colour": 7, "video": "a.mp4"}]}),
                              ("lora.colour", {"lora": [{"colour": 7}]})):
            error = self.wrong(param, "unknown_field", **fields)
            self.assertEqual(error["value"], "7", fields)
            self.assertTrue(error["allowed"], fields)
        error = self.refused(self.server.post("/v1/lint", {"prompt": "x", "steps": 7}), 400, "unknown_field", "steps")
        self.assertEqual(error["value"], "7")

    def test_prompt(self):
        for prompt in ("", "   \n"):
            self.refused(self.server.post("/v1/videos/estimate", {"prompt": prompt}), 400, "invalid_value", "prompt")
        self.refused(self.server.post("/v1/videos/estimate", {}), 400, "invalid_value", "prompt")
        self.assertEqual(self.server.post("/v1/videos/estimate", {"prompt": "a"}).status, 200)

    def test_bodies(self):
        form = self.server.post("/v1/videos/estimate", "prompt=a+b&steps=3&seed=4",
                                headers={"Content-Type": "application/x-www-form-urlencoded"})
        self.assertEqual(form.json["num_inference_steps"], 3)
        curl = self.server.post("/v1/videos/estimate", json.dumps({"prompt": "x", "steps": 2}),
                                headers={"Content-Type": "application/x-www-form-urlencoded"})
        self.assertEqual(curl.json["num_inference_steps"], 2)
        for body in (b"", b"{", b"[]", b"{\"prompt\": \"x\", \"prompt\": \"y\"}", b"\xff", b"{\"prompt\": \"\xff\"}"):
            self.refused(self.server.post("/v1/videos", body, headers={"Content-Type": "application/json"}), 400)
        self.refused(self.server.post("/v1/videos", b"<a/>", headers={"Content-Type": "text/xml"}), 415)
        self.refused(self.server.post("/v1/videos", b"x", headers={"Content-Type": "multipart/form-data"}), 400)

    def test_requests_of_other_clients(self):
        for name, fixture, body, headers in fixtures():
            # The canvas of the fixture is for the release; the request is what is tested, not its rendering.
            reply = self.server.post("/v1/videos/estimate", body, headers=headers)
            self.assertEqual(reply.status, 200, (name, reply.body[:400]))
            for key, value in fixture["expect"].items():
                self.assertEqual(reply.json[key], value, (name, key))


def fixtures():
    """Requests as the clients of other servers send them (fixtures/*.json): name, fixture, body, headers."""
    with open(PICTURE, "rb") as file:
        png = file.read()
    names = sorted(os.listdir(FIXTURES))
    assert len(names) >= 6
    for name in names:
        with open(os.path.join(FIXTURES, name)) as file:
            text = file.read().replace("@PICTURE@", "data:image/png;base64," + base64.b64encode(png).decode())
        fixture = json.loads(text)
        if "multipart" in fixture:
            fields = [(k, (v["file"], png, "image/png") if isinstance(v, dict) else v) for k, v in fixture["multipart"]]
            body, headers = multipart(fields)
        else:
            body, headers = json.dumps(fixture["json"]), {"Content-Type": "application/json"}
        yield name, fixture, body, headers


class Accepted(ServerTest):
    """The same requests sent in earnest, behind a job that keeps the device busy."""
    env = {"H3_TEST_BLOCK_MS": "200"}

    def test_fixtures_become_jobs(self):
        busy = self.server.submit(steps=1000)
        self.server.in_stage(busy, "denoise")
        for name, fixture, body, headers in fixtures():
            if name in ("hot_runtime.json",):  # its endpoint waits for the clip: test_hot_runtime_body
                continue
            reply = self.server.post("/v1/videos", body, headers=headers)
            self.assertEqual(reply.status, 200, (name, reply.body[:400]))
            job = reply.json
            for key, kind in {"id": str, "object": str, "model": str, "status": str, "progress": int, "created_at": int, "size": str,
                              "seconds": str, "media_type": str, "file_name": str, "num_outputs": int}.items():
                self.assertIsInstance(job[key], kind, (name, key))
            self.assertEqual((job["object"], job["status"], job["progress"], job["error"]), ("video", "queued", 0, None), name)
            for key, value in fixture["expect"].items():
                if key in job:
                    self.assertEqual(job[key], value, (name, key))
            self.assertEqual(self.server.post("/v1/videos/%s/cancel" % job["id"]).json["status"], "cancelled", name)
        self.server.post("/v1/videos/%s/cancel" % busy)
        self.server.finished(busy)


class Shapes(ServerTest):
    """What clients of other servers read in an answer."""

    def types(self, reply, **expected):
        for name, kind in expected.items():
            self.assertIn(name, reply)
            self.assertIsInstance(reply[name], kind, name)

    def test_sglang(self):
        reply = self.server.post("/v1/videos", {**SMALL, "steps": None, "num_inference_steps": 1, "seconds": 4, "num_outputs_per_prompt": 1})
        self.assertEqual(reply.status, 200, reply.body)
        none = type(None)
        self.types(reply.json, id=str, object=str, model=str, status=str, progress=int, created_at=int, completed_at=none, size=str,
                   seconds=str, quality=str, url=none, remixed_from_video_id=none, error=none, file_path=none, num_outputs=int)
        self.assertEqual((reply.json["object"], reply.json["status"], reply.json["progress"]), ("video", "queued", 0))
        done = self.server.finished(reply.json["id"])
        self.types(done, completed_at=int, expires_at=int, url=str, peak_memory_mb=(int, float), inference_time_s=float)
        self.assertEqual((done["status"], done["progress"]), ("completed", 100))
        self.assertEqual(self.server.get("/v1/videos/%s/content?variant=0" % done["id"]).headers["Content-Type"], done["media_type"])

    def test_vllm_omni(self):
        body, headers = multipart([(k, v) for k, v in {**SMALL, "aspect_ratio": "1:1", "extra_params": "{\"task\": \"t2va\"}"}.items()])
        reply = self.server.post("/v1/videos", body, headers=headers)
        self.assertEqual(reply.status, 200, reply.body)
        self.types(reply.json, id=str, object=str, status=str, progress=int, created_at=int, media_type=str, file_name=str)
        done = self.server.finished(reply.json["id"])
        self.types(done, inference_time_s=float, stage_durations=dict, peak_memory_mb=(int, float), expires_at=int)
        self.assertTrue(all(isinstance(seconds, float) for seconds in done["stage_durations"].values()))
        page = self.server.get("/v1/videos").json
        self.types(page, object=str, data=list, first_id=str, last_id=str, has_more=bool)
        self.assertEqual(self.server.request("DELETE", "/v1/videos/" + done["id"]).json,
                         {"id": done["id"], "deleted": True, "object": "video.deleted"})

    def test_official(self):
        body = {"task": "t2va", "prompt": "x", "conditions": [], "target": {"short_edge": 32, "aspect_ratio": "1:1", "duration_seconds": 0.2},
                "seed": 3, "steps": 1}
        reply = self.server.post("/v1/videos", body)
        self.assertEqual(reply.status, 200, reply.body)
        done = self.server.finished(reply.json["id"])
        self.assertEqual((done["status"], done["size"], done["seed"]), ("completed", "32x32", 3))
        self.assertEqual(len(self.server.get("/v1/videos/%s/content" % done["id"]).body), done["bytes"])

    def test_errors_are_openai_s(self):
        error = self.server.post("/v1/videos", {"prompt": ""}).error
        self.types(error, message=str, type=str, code=str, param=str)
        self.assertEqual(error["type"], "invalid_request_error")


if __name__ == "__main__":
    main()
