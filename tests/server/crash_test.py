"""kill -9 at random moments: nothing that was accepted is lost or delivered twice, and no file is torn."""
import random

from harness import *

KILLS = int(os.environ.get("H3_TEST_KILLS", "5" if SLOW > 1 else "20"))
SEED = int(os.environ.get("H3_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 30)


class Crash(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.random = random.Random(SEED)
        print("seed", SEED)
        cls.folder = tempfile.mkdtemp(prefix="h3-crash-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.out = os.path.join(cls.folder, "out")
        os.mkdir(cls.out)
        server = cls.server()
        cls.clips = []
        for seed in range(3):  # what each job must deliver, to the byte
            job_id = server.submit(seed=seed)
            assert server.finished(job_id)["status"] == "completed"
            cls.clips.append(server.get("/v1/videos/%s/content" % job_id).body)
        server.stop()

    @classmethod
    def server(cls, block_ms=0):
        return Server("--output-root", cls.out, env={"H3_TEST_BLOCK_MS": str(block_ms)} if block_ms else {}, folder=cls.folder)

    def survive(self, block_ms, moment):
        """Three jobs, a kill, a restart."""
        server = self.server(block_ms)
        for name in os.listdir(self.out):
            os.unlink(os.path.join(self.out, name))
        jobs = []
        for seed in range(3):
            reply = server.post("/v1/videos", {**SMALL, "seed": seed, "output": "%d.mp4" % seed},
                                headers={"Idempotency-Key": "%s-%d" % (moment, seed)})
            self.assertEqual(reply.status, 200, reply.body)
            jobs.append(reply.json["id"])
        if block_ms >= 1000:
            server.in_stage(jobs[0], "denoise")
        time.sleep(self.random.random() * (2 * block_ms / 1000 if block_ms >= 1000 else 1.5))
        if block_ms >= 1000:  # in the middle of the only step: it has more than two blocks
            job = server.job(jobs[0])
            self.assertEqual((job["stage"], job["step"], job["stage_total"]), ("denoise", 0, 1))
        server.kill()
        for name in os.listdir(self.out):  # complete or not there
            if not name.startswith("."):
                with open(os.path.join(self.out, name), "rb") as file:
                    self.assertEqual(file.read(), self.clips[int(name[0])], name)
        server = self.server()
        try:
            for seed, job_id in enumerate(jobs):
                job = server.finished(job_id)
                self.assertEqual(job["status"], "completed", job)
                self.assertLessEqual(job["attempts"], 2)
                self.assertEqual(server.get("/v1/videos/%s/content" % job_id).body, self.clips[seed])
                with open(os.path.join(self.out, "%d.mp4" % seed), "rb") as file:
                    self.assertEqual(file.read(), self.clips[seed])
                again = server.post("/v1/videos", {**SMALL, "seed": seed, "output": "%d.mp4" % seed},
                                    headers={"Idempotency-Key": "%s-%d" % (moment, seed)})
                self.assertEqual(again.json["id"], job_id)
            ids = [job["id"] for job in server.get("/v1/videos?limit=1000").json["data"]]
            self.assertEqual(len(ids), len(set(ids)))
            for job_id in jobs:
                self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "data/jobs", job_id))),
                                 ["clip.mp4", "report.json"])
        finally:
            self.assertEqual(server.stop(), 0)

    def test_kill_at_random_moments(self):
        for kill in range(KILLS):
            with self.subTest(kill=kill):
                self.survive(20, "fast-%d" % kill)

    def test_kill_in_the_middle_of_a_step(self):
        for kill in range(KILLS):
            with self.subTest(kill=kill):
                self.survive(2000, "slow-%d" % kill)

    def test_cancel_survives_a_kill(self):
        server = self.server(2000)
        job_id = server.submit(steps=5)
        server.in_stage(job_id, "denoise")
        server.post("/v1/videos/%s/cancel" % job_id)
        server.kill()
        server = self.server()
        self.assertEqual(server.job(job_id)["status"], "cancelled")
        server.stop()

    def test_second_kill_in_the_same_job_ends_it(self):
        server = self.server(2000)
        job_id = server.submit(steps=5)
        for _ in range(2):
            server.in_stage(job_id, "denoise")
            server.kill()
            server = self.server(2000)
        job = server.job(job_id)
        self.assertEqual((job["status"], job["error"]["code"]), ("failed", "server_restarted"))
        server.stop()

    def test_orderly_stop_keeps_the_queue(self):
        server = self.server(500)
        jobs = [server.submit(seed=seed) for seed in range(2)]
        server.in_stage(jobs[0], "denoise")
        self.assertEqual(server.stop(), 0)
        server = self.server()
        for job_id in jobs:
            job = server.finished(job_id)
            self.assertEqual((job["status"], job["attempts"]), ("completed", 1))
        server.stop()


if __name__ == "__main__":
    main()
