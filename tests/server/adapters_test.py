"""Adapters and presets by request, and nothing of one request in another."""
import random
import struct

from harness import *


def write_adapter(path, seed, metadata=None):
    """A LoRA of rank 2 for every query and value of the demo model's transformer, in the spelling of diffusers."""
    dice = random.Random(seed)
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for block in range(6):
        for name in ("to_q", "to_v"):
            for part, shape in (("lora_A", (2, 256)), ("lora_B", (512, 2))):
                values = struct.pack("<%df" % (shape[0] * shape[1]), *[dice.gauss(0, 0.05) for _ in range(shape[0] * shape[1])])
                key = "transformer.transformer_blocks.%d.attn.%s.%s.weight" % (block, name, part)
                header[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(values)]}
                data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Adapters(ServerTest):
    @classmethod
    def make_flags(cls):
        cls.turbo, cls.style = os.path.join(cls.folder, "fast.safetensors"), os.path.join(cls.folder, "style.safetensors")
        write_adapter(cls.turbo, 1)
        write_adapter(cls.style, 2)
        return ["--turbo-lora", "4step=" + cls.turbo, "--turbo-lora", "style=" + cls.style]

    def render(self, **fields):
        # No number of steps: a turbo adapter brings its own.
        reply = self.server.post("/v1/videos", {**SMALL, "seed": 3, "steps": None, **fields})
        self.assertEqual(reply.status, 200, reply.body)
        job = self.server.finished(reply.json["id"])
        self.assertEqual(job["status"], "completed", job)
        return job, self.server.get(job["url"]).body

    def test_nothing_of_one_request_in_another(self):
        _, plain = self.render()
        fast, turbo = self.render(turbo="4step")
        self.assertEqual((fast["turbo"], fast["num_inference_steps"]), ("4step", 4))
        self.assertEqual(self.server.get("/ready").json["current_turbo"], "4step")
        _, styled = self.render(lora=[{"name": "style", "scale": 0.5}])
        self.assertIsNone(self.server.get("/ready").json["current_turbo"])
        self.assertEqual(len({plain, turbo, styled}), 3)
        # In another order, after one another and after the plain one: the same bytes.
        self.assertEqual(self.render(lora=[{"name": "style", "scale": 0.5}])[1], styled)
        self.assertEqual(self.render()[1], plain)
        self.assertEqual(self.render(turbo="4step")[1], turbo)
        self.assertEqual(self.render()[1], plain)

    def test_spellings(self):
        want = self.render(lora=[{"name": "style", "scale": 0.5}])[1]
        for fields in ({"lora": {"name": "style", "path": self.style, "scale": 0.5, "int_id": 1}}, {"lora": [{"path": "style.safetensors", "multiplier": 0.5}]},
                       {"lora_paths": ["style"], "lora_scales": [0.5]}, {"lora_name": "style", "lora_strength": 0.5}):
            self.assertEqual(self.render(**fields)[1], want, fields)
        self.assertEqual(self.render(turbo=True)[1], self.render(turbo="4step")[1])
        for turbo in ("none", None, False):
            self.assertEqual(self.render(turbo=turbo)[1], self.render()[1])

    def test_what_is_available(self):
        self.assertEqual(self.server.get("/ready").json["available_turbos"], ["4step", "style"])
        model = self.server.get("/v1/models").json["data"][0]
        self.assertEqual(model["turbos"], ["4step", "style"])
        self.assertEqual(model["presets"][0], "exact")

    def test_refusals(self):
        def wrong(param, allowed, **fields):
            error = self.refused(self.server.post("/v1/videos", {**SMALL, "steps": None, **fields}), 400, "invalid_value", param)
            self.assertIn(allowed, error["message"])
        wrong("turbo", "4step, style", turbo="8step")
        wrong("lora", "4step, style", lora=[{"name": "/etc/passwd"}])
        wrong("lora", "4step, style", lora=[{"path": os.path.join(self.folder, "other.safetensors")}])
        wrong("lora_paths", "1", lora_paths=["style"], lora_scales=[1, 2])
        wrong("steps", "4", turbo="4step", steps=20)
        wrong("preset", "exact", preset="quick")

    def test_presets(self):
        job, clip = self.render(preset="balanced", steps=12)
        self.assertEqual(sum(job["evaluations"].values()), 12)
        self.assertEqual(self.render(preset="exact", steps=12)[0]["evaluations"], {"run": 12, "reused": 0, "forecast": 0})
        self.assertEqual(self.render(preset="balanced", steps=12)[1], clip)


if __name__ == "__main__":
    main()
