"""References through the API: every way to send them gives the clip of the command line, and what cannot be is refused."""
import array
import base64
import hashlib
import math
import wave

from harness import *

PROMPT = "<Picture 1>, <Picture 2>, <Picture 3> and <Picture 4> move like <Video 1> to <Audio 1> and <Audio 2>."
CLIP = {"prompt": PROMPT, "size": "32x32", "num_frames": 22, "steps": 1, "seed": 5, "ref_image_size": "match"}


def ppm(width, height, colour):
    return b"P6\n%d %d\n255\n" % (width, height) + bytes(colour) * (width * height)


def wav(path, seconds, channels=1, rate=16000):
    with wave.open(path, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        tone = array.array("h", [int(9000 * math.sin(i * 0.17)) for i in range(int(seconds * rate)) for _ in range(channels)])
        file.writeframes(tone.tobytes())


def store_as_fp8(path, name):
    """Writes one tensor of a safetensors file as zeros in fp8."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header, data = json.loads(file.read(size)), file.read()
    out, entries = b"", {key: value for key, value in header.items() if key != "__metadata__"}
    for key, entry in entries.items():
        start, end = entry["data_offsets"]
        piece = data[start:end]
        if key == name:
            entry["dtype"], piece = "F8_E4M3", bytes(math.prod(entry["shape"]))
        entry["data_offsets"] = [len(out), len(out) + len(piece)]
        out += piece
    assert name in entries
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + out)


def make_media(folder, server):
    """Four pictures, a sound, and a clip with sound, which the model makes itself."""
    for i in range(4):
        with open(os.path.join(folder, "p%d.ppm" % i), "wb") as file:
            file.write(ppm(40 + 8 * i, 32, (60 * i, 200 - 40 * i, 90)))
    wav(os.path.join(folder, "s.wav"), 1)
    job = server.finished(server.submit(num_frames=22))
    assert job["status"] == "completed", job
    with open(os.path.join(folder, "v.mp4"), "wb") as file:
        file.write(server.get("/v1/videos/%s/content" % job["id"]).body)


class ReferencesTest(ServerTest):
    @classmethod
    def make_flags(cls):
        cls.media = os.path.join(cls.folder, "media")
        os.mkdir(cls.media)
        return ["--media-root", cls.media]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        make_media(cls.media, cls.server)

    def bytes(self, name):
        with open(os.path.join(self.media, name), "rb") as file:
            return file.read()

    def uri(self, name):
        return "data:application/octet-stream;base64," + base64.b64encode(self.bytes(name)).decode()

    def conditions(self, uri, order=("p0.ppm", "p1.ppm", "v.mp4", "p2.ppm", "s.wav", "p3.ppm")):
        kinds = {"p": "image", "v": "video_audio", "s": "audio"}
        return [{"type": kinds[name[0]], "role": "reference", "uri": uri(name), "name": name} for name in order]

    def estimate(self, **fields):
        reply = self.server.post("/v1/videos/estimate", {**CLIP, **fields})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json

    def wrong(self, param, code="invalid_value", status=400, **fields):
        return self.refused(self.server.post("/v1/videos/estimate", {**CLIP, **fields}), status, code, param)

    def command_line(self, job):
        """The same request and seed as `h3 generate` with the same files."""
        stored, flags = os.path.join(self.folder, "data/inputs"), []
        for i, reference in enumerate(job["references"]):
            digest = hashlib.sha256(self.server.get(job["inputs"]["reference_%d" % (i + 1)]).body).hexdigest()
            found = [name for name in os.listdir(stored) if name.startswith(digest)]
            self.assertEqual(len(found), 1)
            flags += ["--ref-" + reference["type"], os.path.join(stored, found[0])]
        clip = os.path.join(self.folder, "cli.mp4")
        done = subprocess.run([PROGRAM, "generate", "-p", PROMPT, "--size", "32x32", "--frames", "22", "--steps", "1", "-s", "5",
                               "--ref-image-size", "match", "--threads", "1", "-o", clip] + flags, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(clip, "rb") as file:
            return file.read(), done.stdout + done.stderr


class Ways(ReferencesTest):
    def test_every_way_is_the_command_line(self):
        """Four pictures, a clip with its sound and a sound: JSON, files below the media root, parts of a form."""
        parts = [("ref_image", "p0.ppm"), ("ref_image", "p1.ppm"), ("ref_video", "v.mp4"), ("ref_image", "p2.ppm"),
                 ("ref_audio", "s.wav"), ("ref_image", "p3.ppm")]
        files = [(field, (name, self.bytes(name), "application/octet-stream")) for field, name in parts]
        attached = [(name.replace(".", "_"), (name, self.bytes(name), "")) for _, name in parts]
        named = json.dumps(self.conditions(lambda name: "attachment:" + name.replace(".", "_")))
        bodies = {
            "base64": ({**CLIP, "task": "ref2va", "conditions": self.conditions(self.uri)}, None),
            "media root": ({**CLIP, "conditions": self.conditions(lambda name: name)}, None),
            "form": multipart(list(CLIP.items()) + files),
            "form with conditions": multipart(list(CLIP.items()) + [("conditions", named)] + attached),
            "vllm": multipart(list(CLIP.items()) + [("task", "ref2va")] + [("input_references", file) for _, file in files]),
        }
        jobs, key = {}, {"Idempotency-Key": "the same request"}
        for way, (body, headers) in bodies.items():
            # A key that was used with another request is refused: the ways that render nothing ask for the same clip.
            rendered = way in ("base64", "form")
            reply = self.server.post("/v1/videos", body, headers={**(headers or {}), **({} if way == "form" else key)})
            self.assertEqual(reply.status, 200, (way, reply.body[:400]))
            self.assertEqual((reply.json["warnings"], reply.headers["Idempotency-Replayed"]), ([], None if rendered else "true"), way)
            jobs[way] = self.server.finished(reply.json["id"], 180)
            self.assertEqual(jobs[way]["status"], "completed", (way, jobs[way]))
        clip, printed = self.command_line(jobs["base64"])
        for way, job in jobs.items():
            self.assertTrue(self.server.get(job["url"]).body == clip, way + " differs from the command line")
            self.assertEqual([(r["type"], r["name"], r["tag"], r["sound_tag"]) for r in job["references"]], [
                ("image", "p0.ppm", "<Picture 1>", None), ("image", "p1.ppm", "<Picture 2>", None),
                ("video", "v.mp4", "<Video 1>", "<Audio 1>"), ("image", "p2.ppm", "<Picture 3>", None),
                ("audio", "s.wav", None, "<Audio 2>"), ("image", "p3.ppm", "<Picture 4>", None)])
            table = job["resolved"]["references"]
            self.assertEqual(len(table), 7)
            self.assertTrue(table[0].startswith("<Picture 1> = p0.ppm (40x32 -> "), table)
            self.assertTrue(table[2].startswith("<Audio 1> = sound of v.mp4 ("), table)
            self.assertTrue(table[3].startswith("<Video 1> = v.mp4 ("), table)
            self.assertEqual(self.server.get("/v1/videos/%s/report" % job["id"]).json["resolved"]["references"], table)
        for line in jobs["form"]["resolved"]["references"]:
            self.assertIn(line.split(" = ")[0], printed)
        inputs = jobs["form"]["inputs"]
        self.assertEqual(self.server.get(inputs["reference_3"]).body, self.bytes("v.mp4"))
        self.assertEqual(self.server.get(inputs["reference_3"]).headers["Content-Type"], "video/mp4")
        self.assertEqual(self.server.get(inputs["reference_5"]).headers["Content-Type"], "audio/wav")
        self.refused(self.server.get(inputs["reference_3"].replace("_3", "_7")), 404)

    def tags(self, **fields):
        return [(r["tag"], r["sound_tag"], r["sound_name"]) for r in self.estimate(**fields)["references"]]

    def test_sounds_of_clips(self):
        video = {"type": "video", "role": "reference", "uri": "v.mp4"}
        self.assertEqual(self.tags(conditions=[video]), [("<Video 1>", None, None)])  # as the official API has it
        self.assertEqual(self.tags(conditions=[{**video, "type": "video_audio"}]), [("<Video 1>", "<Audio 1>", "v.mp4")])
        self.assertEqual(self.tags(conditions=[{**video, "sound": "s.wav"}]), [("<Video 1>", "<Audio 1>", "s.wav")])
        self.assertEqual(self.tags(ref_videos=["v.mp4"]), [("<Video 1>", "<Audio 1>", "v.mp4")])
        self.assertEqual(self.tags(ref_videos="v.mp4", ref_silent=True), [("<Video 1>", None, None)])
        self.assertEqual(self.tags(ref_videos=[{"video": "v.mp4", "silent": True}, {"video": "v.mp4", "audio": "s.wav"}],
                                   num_frames=22), [("<Video 1>", None, None), ("<Video 2>", "<Audio 1>", "s.wav")])
        self.assertEqual(self.tags(ref_videos=["v.mp4", "v.mp4"], ref_video_audios=[None, "s.wav"]),
                         [("<Video 1>", "<Audio 1>", "v.mp4"), ("<Video 2>", "<Audio 2>", "s.wav")])
        self.wrong("ref_video_audios", ref_video_audios=["s.wav"])
        self.wrong("ref_videos[0].frames", ref_videos=[{"frames": []}])
        self.wrong("conditions[0].sound", conditions=[{"type": "image", "role": "reference", "uri": "p0.ppm", "sound": "s.wav"}])
        self.wrong("ref_silent", ref_videos=[{"video": "v.mp4", "audio": "s.wav"}], ref_silent=True)

    def test_spellings_of_other_programs(self):
        for fields in ({"ref_images": ["p0.ppm"]}, {"ref_image": "p0.ppm"}, {"image_reference": {"image_url": self.uri("p0.ppm")}},
                       {"ref_images": [{"image_url": {"url": self.uri("p0.ppm")}}]}, {"ref_images_b64": [self.uri("p0.ppm").split(",")[1]]},
                       {"task": "ref2va", "input_reference": "p0.ppm"}, {"task": "ref2va", "input_references": ["p0.ppm"]}):
            reply = self.estimate(**fields)
            self.assertEqual(([r["tag"] for r in reply["references"]], reply["resolved"]["task"]), (["<Picture 1>"], "ref2va"), fields)
        self.assertEqual(self.estimate(ref_images=[], ref_videos=[], ref_audios=None, image_reference={}, ref_image_size=None)["references"], [])
        size = {rule: self.estimate(ref_images=["p0.ppm"], ref_image_size=rule)["references"][0]["is"] for rule in ("official", "match", "max")}
        self.assertEqual(size, {"official": "40x32 -> 160x128", "match": "40x32 -> 32x32", "max": "40x32 -> 32x32"})
        self.assertEqual(self.estimate(ref_images=["p0.ppm"], ref_image_size=None, reference_resize_mode="diffusers")["references"][0]["is"], size["official"])
        self.wrong("ref_image_size", ref_images=["p0.ppm"], ref_image_size="huge")

    def test_no_field_is_ignored(self):
        self.assertIn("without a reference", self.wrong("ref_image_size", ref_image_size="match")["message"])
        self.wrong("reference_resize_mode", ref_image_size=None, reference_resize_mode="official")
        self.wrong("ref_silent", ref_image_size=None, ref_silent=True)
        self.assertEqual(self.estimate(ref_image_size=None, ref_silent=False, prompt="x")["warnings"], [])

    def test_kinds_that_the_bytes_tell(self):
        """Of files without a kind only the number in all is known before they are read."""
        files = ["p%d.ppm" % (i % 4) for i in range(9)] + ["v.mp4"]
        found = self.estimate(task="ref2va", input_references=files)["references"]
        self.assertEqual([r["type"] for r in found], ["image"] * 9 + ["video"])
        error = self.wrong("input_references", task="ref2va", input_references=files + ["s.wav"] * 3)
        self.assertIn("13 references are given", error["value"])
        error = self.wrong("input_references", task="ref2va", input_references=["p0.ppm"] * 10)
        self.assertIn("10 images are given", error["value"])

    def test_parts_may_be_called_like_fields(self):
        conditions = [{"type": "image", "role": "reference", "uri": "attachment:image"},
                      {"type": "audio", "role": "reference", "uri": "attachment:prompt", "name": "s.wav"}]
        parts = [("conditions", json.dumps(conditions)), ("image", ("p0.ppm", self.bytes("p0.ppm"), "")), ("prompt", ("s.wav", self.bytes("s.wav"), ""))]
        body, headers = multipart(list(CLIP.items()) + parts)
        reply = self.server.post("/v1/videos/estimate", body, headers=headers)
        self.assertEqual(reply.status, 200, reply.body)
        self.assertEqual([(r["tag"], r["sound_tag"], r["name"]) for r in reply.json["references"]],
                         [("<Picture 1>", None, "p0.ppm"), (None, "<Audio 1>", "s.wav")])

    def test_a_part_that_is_only_mentioned_is_refused(self):
        """A name is not a use of the file."""
        conditions = [{"type": "image", "role": "reference", "uri": "attachment:used", "name": "attachment:idle"}]
        parts = [("conditions", json.dumps(conditions))] + [(name, ("p0.ppm", self.bytes("p0.ppm"), "")) for name in ("used", "idle")]
        body, headers = multipart(list(CLIP.items()) + parts)
        error = self.refused(self.server.post("/v1/videos/estimate", body, headers=headers), 400, "unknown_field", "idle")
        self.assertIn("no condition has this file", error["message"])

    def test_longer_sequences_take_longer(self):
        plain = self.server.finished(self.server.submit(size="64x64", num_frames=22))
        self.assertEqual(plain["status"], "completed")
        few = self.estimate(ref_images=["p0.ppm"], prompt="<Picture 1>")["work_seconds"]
        many = self.estimate(ref_images=["p0.ppm"] * 9, prompt="<Picture 1>")["work_seconds"]
        self.assertLess(few, many)


class Refusals(ReferencesTest):
    def test_limits(self):
        for fields, param, value, allowed in (
                ({"ref_images": ["p0.ppm"] * 10}, "ref_images", "10 images are given", "at most 9"),
                ({"conditions": self.conditions(str, ["p0.ppm"] + ["v.mp4"] * 4)}, "conditions", "4 videos are given", "at most 3"),
                ({"ref_images": ["p0.ppm"], "ref_audios": ["s.wav"] * 4}, "ref_images", "4 sounds are given", "at most 3"),
                ({"ref_images": ["p0.ppm"] * 9, "ref_audios": ["s.wav"] * 3, "ref_videos": ["v.mp4"]}, "ref_images",
                 "13 references are given", "at most 12"),
                ({"ref_audios": ["s.wav"]}, "ref_audios", "a sound cannot stand alone", "an image or a video")):
            error = self.wrong(param, **fields)
            self.assertIn(value, error["value"])
            self.assertIn(allowed, error["allowed"])
            self.assertTrue(error["message"].startswith(param + ": "), error)

    def test_files_that_cannot_be(self):
        for name, seconds in (("short.wav", 0.2), ("long.wav", 16)):
            wav(os.path.join(self.media, name), seconds, rate=8000)
            error = self.wrong("ref_audios[0]", ref_images=["p0.ppm"], ref_audios=[name])
            self.assertIn("%s has %.2f s" % (name, seconds), error["value"])
            self.assertIn("to 15 seconds", error["allowed"])
        wav(os.path.join(self.media, "six.wav"), 1, channels=6)
        self.assertIn("1 or 2", self.wrong("ref_audios[0]", ref_images=["p0.ppm"], ref_audios=["six.wav"])["allowed"])
        for name, size in (("wide.ppm", (200, 40)), ("huge.ppm", (5792, 1500))):
            with open(os.path.join(self.media, name), "wb") as file:
                file.write(ppm(*size, (1, 2, 3)))
        self.assertIn("between 1:4 and 4:1", self.wrong("conditions[1].uri", conditions=self.conditions(str, ["p0.ppm", "p1.ppm"])[:1] + [
            {"type": "image", "role": "reference", "uri": "wide.ppm"}])["allowed"])
        self.assertIn("at most 5760", self.wrong("ref_images[0]", ref_images=["huge.ppm"])["allowed"])
        broken = self.bytes("v.mp4")[:2000]
        error = self.wrong("ref_videos[0]", "invalid_media", ref_videos=["data:video/mp4;base64," + base64.b64encode(broken).decode()])
        self.assertNotIn("inputs/", error["message"])  # the server's own paths are nobody's business
        self.wrong("ref_images[0]", "invalid_media", ref_images=["s.wav"])
        self.assertIn("no pictures", self.wrong("ref_videos[0]", ref_videos=["s.wav"])["message"])
        self.wrong("ref_images[0]", status=400, code="invalid_media", ref_images=["data:image/png;base64,!!!!"])
        self.wrong("ref_images[0]", status=403, code="path_not_allowed", ref_images=["/etc/passwd"])
        self.wrong("ref_images[0]", status=403, code="urls_not_allowed", ref_images=["http://127.0.0.1/a.png"])
        self.wrong("input_references", "invalid_media", task="ref2va", input_references=base64.b64encode(b"RIFFnothing at all").decode())

    def test_sizes_of_files_are_those_of_the_documentation(self):
        limits = self.server.get("/v1/models").json["data"][0]["limits"]
        with open(os.path.join(SOURCE, "docs/http.md")) as file:
            text = " ".join(file.read().split())
        self.assertIn("A picture or a sound has at most %d MiB; a clip, and a file that gives a clip its sound, %d MiB. `--max-body` limits the "
                      "whole body: %d MiB" % tuple(limits[key] >> 20 for key in ("max_file_bytes", "max_clip_bytes", "max_body_bytes")), text)
        with open(os.path.join(self.media, "large.wav"), "wb") as file:
            file.write(self.bytes("s.wav"))
            file.truncate(limits["max_file_bytes"] + 1)
        for param, code, fields in (("ref_audios[0]", "invalid_path", {"ref_images": ["p0.ppm"], "ref_audios": ["large.wav"]}),
                                    ("input_references[1]", "invalid_media", {"task": "ref2va", "input_references": ["p0.ppm", "large.wav"]})):
            self.assertIn(str(limits["max_file_bytes"]), self.wrong(param, code, **fields)["message"])
        with open(os.path.join(self.media, "large.mp4"), "wb") as file:
            file.truncate(limits["max_clip_bytes"] + 1)
        self.assertIn(str(limits["max_clip_bytes"]), self.wrong("ref_videos[0]", "invalid_path", ref_videos=["large.mp4"])["message"])

    def test_shapes(self):
        image = {"type": "image", "role": "reference", "uri": "p0.ppm"}
        self.wrong("conditions[0].extra", "unknown_field", conditions=[{**image, "extra": 1}])
        self.wrong("conditions[0].type", conditions=[{**image, "type": "picture"}])
        self.wrong("conditions[1].role", "unsupported", conditions=[image, {**image, "role": "style"}])
        self.wrong("conditions[0].role", "unsupported", conditions=[{"type": "audio", "uri": "s.wav", "role": "keyframe"}])
        self.wrong("conditions[0].uri", conditions=[{"type": "image", "role": "reference"}])
        self.wrong("conditions[0].uri", conditions=[{**image, "uri": "attachment:nothing"}])
        self.wrong("conditions[0].frame_index", conditions=[{**image, "frame_index": 0}])
        self.wrong("conditions[0].start_time_seconds", conditions=[{**image, "start_time_seconds": 1}])
        self.assertEqual(len(self.estimate(conditions=[{**image, "start_time_seconds": 0}])["references"]), 1)
        self.wrong("conditions", conditions=[image, {**image, "role": "keyframe"}])
        for task in ("t2va", "fl2va"):
            self.assertEqual(self.wrong("task", task=task, conditions=[image])["allowed"], "ref2va")
        self.assertEqual(self.wrong("task", task="ref2va")["allowed"], "t2va")
        body, headers = multipart(list(CLIP.items()) + [("clip1", ("v.mp4", b"x", "video/mp4"))])
        self.refused(self.server.post("/v1/videos/estimate", body, headers=headers), 400, "unknown_field", "clip1")
        self.assertEqual(self.server.get("/v1/videos?status=queued").json["data"], [])

    def test_tags(self):
        warned = self.estimate(prompt="<Picture 1> and <Picture 2> and <Video 1>", ref_images=["p0.ppm"], ref_audios=["s.wav"])["warnings"]
        for text in ("<Picture 2> names nothing, the last one is <Picture 1>", "<Video 1> names nothing", "does not mention <Audio 1> (s.wav)"):
            self.assertTrue(any(text in warning for warning in warned), (text, warned))
        self.assertIn("strict", self.wrong("prompt", prompt="cat", strict=True, ref_images=["p0.ppm"])["message"])
        self.assertIn("<Video 1>", self.wrong("prompt", prompt="<Video 1>", strict=True, ref_image_size=None)["message"])
        self.assertEqual(self.estimate(prompt="<Picture 1>", strict=True, ref_images=["p0.ppm"])["warnings"], [])

    def test_nothing_stays_of_what_was_refused(self):
        before = sorted(os.listdir(os.path.join(self.folder, "data/inputs")))
        self.wrong("ref_images[0]", ref_images=["data:application/octet-stream;base64," + base64.b64encode(ppm(300, 30, (9, 9, 9))).decode()])
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "data/inputs"))), before)


class Halves(ReferencesTest):
    """The release has one transformer for prompts and keyframes and another for references."""

    @classmethod
    def make_flags(cls):
        cls.toy = os.path.join(cls.folder, "toy")
        shutil.copytree(os.path.join(SOURCE, "tests/data/golden/toy"), cls.toy)
        shutil.copytree(os.path.join(cls.toy, "transformer"), os.path.join(cls.toy, "transformer_ref"))
        weights = os.path.join(cls.toy, "transformer_ref/diffusion_pytorch_model.safetensors")
        with open(weights, "r+b") as file:  # another file with other weights
            file.seek(-20000, 2)
            file.write(bytes(2000))
        index = os.path.join(cls.toy, "modular_model_index.json")
        with open(index) as file:
            slots = json.load(file)
        slots["transformer_ref"] = json.loads(json.dumps(slots["transformer"]).replace('"transformer"', '"transformer_ref"'))
        with open(index, "w") as file:
            json.dump(slots, file)
        return super().make_flags() + [cls.toy]

    @classmethod
    def setUpClass(cls):
        ServerTest.setUpClass.__func__(cls)
        with open(os.path.join(cls.media, "p.ppm"), "wb") as file:
            file.write(ppm(256, 256, (200, 90, 30)))

    REFERENCE = {"prompt": "<Picture 1>", "ref_images": ["p.ppm"], "ref_image_size": "match"}

    def test_both_are_served_with_one_encoder(self):
        self.assertEqual(self.server.get("/v1/models").json["data"][0]["tasks"], ["t2va", "fl2va", "ref2va"])
        loads = []
        for fields in ({}, self.REFERENCE, {}, self.REFERENCE):
            job = self.server.finished(self.server.submit(**fields))
            self.assertEqual(job["status"], "completed", job)
            stages = self.server.get("/v1/videos/%s/report" % job["id"]).json["stages"]
            loads.append([stage["stage"] for stage in stages if stage["stage"].startswith("load")])
        for load in loads[1:]:
            self.assertIn("load transformer", load)
        self.assertEqual(loads[2], ["load transformer"])
        self.assertEqual(loads[3], ["load transformer"])

    def test_one_half_refuses_the_other(self):
        for half, tasks, fields, right in (("fl2va", ["t2va", "fl2va"], self.REFERENCE, "Ref2VA/"), ("ref2va", ["ref2va"], {}, "FL2VA/")):
            server = Server("--partition", half, "--media-root", self.media, self.toy)
            try:
                error = self.refused(server.post("/v1/videos", {**SMALL, **fields}), 400, "invalid_value")
                self.assertIn(right, error["message"])
                self.assertEqual(server.get("/v1/models").json["data"][0]["tasks"], tasks)
                # The worker measured its machine with what this half can do.
                possible = {**SMALL, **(self.REFERENCE if half == "ref2va" else {})}
                server.until(lambda: "fits" in server.post("/v1/videos/estimate", possible).json, 60, "a plan")
            finally:
                server.close()

    def test_fp8_is_for_devices_that_have_it(self):
        """A transformer stored in fp8: the files allow --precision fp8, the worker's processor does not."""
        folder = os.path.join(self.folder, "fp8")
        shutil.copytree(self.toy, folder)
        store_as_fp8(os.path.join(folder, "transformer/diffusion_pytorch_model.safetensors"), "token_refiner.refiner_blocks.0.ff.net.2.weight")
        server = Server(folder)
        try:
            self.assertEqual(server.get("/v1/models").json["data"][0]["precisions"], ["f32", "bf16", "int8"])
            error = self.refused(server.post("/v1/videos", {**SMALL, "precision": "fp8"}), 400, "invalid_value", "precision")
            self.assertIn("NVIDIA card", error["message"])
        finally:
            server.close()


class Lives(ReferencesTest):
    def test_a_crash_loses_nothing(self):
        request = {**CLIP, "conditions": self.conditions(self.uri, ["p0.ppm", "v.mp4", "s.wav"])}
        want = self.server.finished(self.server.post("/v1/videos", request).json["id"], 180)
        clip = self.server.get(want["url"]).body
        ids = [self.server.post("/v1/videos", request).json["id"] for _ in range(2)]
        self.server.until(lambda: self.server.job(ids[0])["status"] == "in_progress", 60, "start")
        self.server.kill()
        self.server.start()
        for job_id in ids:
            job = self.server.finished(job_id, 180)
            self.assertEqual((job["status"], job["references"]), ("completed", want["references"]), job)
            self.assertTrue(self.server.get(job["url"]).body == clip, "another clip after the crash")
            self.assertEqual(self.server.get(job["inputs"]["reference_2"]).body, self.bytes("v.mp4"))

    def test_another_server_encodes(self):
        helper = Server("--conditioner", "http://127.0.0.1:%d" % self.server.port, "--media-root", self.media)
        try:
            request = {**CLIP, "conditions": self.conditions(str, ["p0.ppm", "v.mp4", "s.wav"])}
            job = helper.finished(helper.post("/v1/videos", request).json["id"], 180)
            self.assertEqual(job["status"], "completed", job)
            self.assertFalse([w for w in job["warnings"] if "conditioner" in w], job["warnings"])
        finally:
            helper.close()


if __name__ == "__main__":
    main()
