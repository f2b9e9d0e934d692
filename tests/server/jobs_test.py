"""Life cycle of jobs: the queue, keys, cancelling, disconnecting, failing devices."""
import base64
import concurrent.futures
import contextlib
import sqlite3

from harness import *

BLOCK_MS = 50  # a job slowed to this per block


class Queue(ServerTest):
    flags = ("--max-queue", "3", "--keep-jobs", "6")
    env = {"H3_TEST_BLOCK_MS": str(BLOCK_MS)}

    def test_full_queue_move_and_keys(self):
        running = self.server.submit(steps=20)
        self.server.in_stage(running, "denoise")
        waiting = [self.server.submit(steps=1, seed=i) for i in range(3)]
        refused = self.server.post("/v1/videos", SMALL)
        self.refused(refused, 503, "queue_full")
        self.assertGreaterEqual(int(refused.headers["Retry-After"]), 1)
        # Reading and cancelling still answer.
        self.assertEqual([self.server.job(j)["queue_position"] for j in waiting], [1, 2, 3])
        self.assertEqual(self.server.get("/v1/videos").status, 200)
        self.server.post("/v1/videos/%s/move" % waiting[2], {"position": "first"})
        self.assertEqual([self.server.job(j)["queue_position"] for j in waiting], [2, 3, 1])
        self.server.post("/v1/videos/%s/move" % waiting[0], {"position": 3})
        self.assertEqual([self.server.job(j)["queue_position"] for j in waiting], [3, 2, 1])
        for body in ({"position": 0}, {"position": "up"}, {}, {"place": 1}):
            self.refused(self.server.post("/v1/videos/%s/move" % waiting[0], body), 400)
        self.refused(self.server.post("/v1/videos/%s/move" % running, {"position": 1}), 409, "not_queued")
        cancelled = self.server.post("/v1/videos/%s/cancel" % waiting[1]).json
        self.assertEqual((cancelled["status"], cancelled["error"]["code"]), ("cancelled", "cancelled"))
        self.refused(self.server.get("/v1/videos/%s/content" % waiting[0]), 409, "not_completed")
        self.server.post("/v1/videos/%s/cancel" % running)
        self.assertEqual(self.server.finished(running)["status"], "cancelled")
        first, last = self.server.finished(waiting[2]), self.server.finished(waiting[0])
        self.assertEqual((first["status"], last["status"]), ("completed", "completed"))
        self.assertLessEqual(first["completed_at"], last["completed_at"])

    def test_idempotency(self):
        key = {"Idempotency-Key": "key-1"}
        first = self.server.post("/v1/videos", SMALL, headers=key)
        again = self.server.post("/v1/videos", {**SMALL, "num_inference_steps": 1, "steps": None}, headers=key)
        self.assertEqual(first.json["id"], again.json["id"])
        self.assertEqual(again.headers["Idempotency-Replayed"], "true")
        self.refused(self.server.post("/v1/videos", {**SMALL, "seed": 5}, headers=key), 409, "idempotency_conflict")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda _: self.server.post("/v1/videos", SMALL, headers={"Idempotency-Key": "key-2"}), range(8)))
        self.assertEqual(len({reply.json["id"] for reply in replies}), 1)
        self.server.finished(first.json["id"])
        self.server.finished(replies[0].json["id"])

    def test_two_clients_and_no_trace_of_one_request_in_another(self):
        def render(fields):
            job_id = self.server.submit(**fields)
            return job_id, self.server.finished(job_id)["status"]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            a, b = pool.map(render, ({"seed": 1}, {"seed": 2, "num_frames": 22, "audio": False}))
        again, _ = render({"seed": 1})
        clips = [self.server.get("/v1/videos/%s/content" % i[0] if isinstance(i, tuple) else "/v1/videos/%s/content" % i).body
                 for i in (a, b, again)]
        self.assertEqual(clips[0], clips[2])
        self.assertNotEqual(clips[0], clips[1])

    def test_retention(self):
        for seed in range(8):
            self.server.finished(self.server.submit(seed=seed))
        self.server.until(lambda: len(self.server.get("/v1/videos").json["data"]) <= 6, 20, "six jobs")
        folders = os.path.join(self.folder, "data/jobs")
        self.server.until(lambda: len(os.listdir(folders)) <= 6, 20, "six folders")


class Retention(unittest.TestCase):
    """By age and by bytes, with a ledger that says that jobs are old and large."""

    def kept(self, changes):
        """changes: by seed of four jobs, oldest first, what to set in the ledger. Returns the seeds that a restart keeps."""
        server = Server()
        try:
            jobs = [server.submit(seed=seed) for seed in range(4)]
            for job_id in jobs:
                server.finished(job_id)
            server.stop()
            with contextlib.closing(sqlite3.connect(os.path.join(server.folder, "data/jobs.db"))) as ledger, ledger:
                for seed, change in changes.items():
                    (text,) = ledger.execute("SELECT data FROM jobs WHERE id = ?", (jobs[seed],)).fetchone()
                    data = json.loads(text)
                    data.update({name: value(data[name]) for name, value in change.items()})
                    ledger.execute("UPDATE jobs SET data = ? WHERE id = ?", (json.dumps(data), jobs[seed]))
            server.start()
            listed = {job["id"] for job in server.get("/v1/videos").json["data"]}
            self.assertEqual(set(os.listdir(os.path.join(server.folder, "data/jobs"))), listed)
            return [seed for seed, job_id in enumerate(jobs) if job_id in listed]
        finally:
            server.close()

    def test_age(self):
        hour = 3600 * 1000
        self.assertEqual(self.kept({0: {"completed": lambda t: t - 169 * hour}, 1: {"completed": lambda t: t - 167 * hour}}), [1, 2, 3])

    def test_bytes(self):
        self.assertEqual(self.kept({1: {"bytes": lambda _: 21 << 30}}), [2, 3])  # the older one goes with it


class Stopping(ServerTest):
    env = {"H3_TEST_BLOCK_MS": str(BLOCK_MS)}

    def free_soon(self, start, blocks=2):
        """The device is free again: another job gets it."""
        self.server.until(lambda: not self.server.get("/ready").json["running"], 30, "free device")
        self.assertLess(time.monotonic() - start, blocks * BLOCK_MS / 1000 + 1.0 * SLOW)

    def test_cancel_while_denoising(self):
        job_id = self.server.submit(steps=20)
        self.server.in_stage(job_id, "denoise")
        start = time.monotonic()
        self.server.post("/v1/videos/%s/cancel" % job_id)
        self.free_soon(start)
        job = self.server.job(job_id)
        self.assertEqual((job["status"], job["url"]), ("cancelled", None))
        self.assertEqual(self.server.finished(self.server.submit())["status"], "completed")

    def test_delete_while_running(self):
        job_id = self.server.submit(steps=20)
        self.server.in_stage(job_id, "denoise")
        self.assertEqual(self.server.request("DELETE", "/v1/videos/" + job_id).json["deleted"], True)
        self.refused(self.server.get("/v1/videos/" + job_id), 404)

    def test_disconnected_waiters_free_the_device(self):
        for path in ("/v1/videos/sync", "/generate"):
            connection = self.server.connect()
            connection.request("POST", path, json.dumps({**SMALL, "steps": 20}), {"Content-Type": "application/json"})
            self.server.until(lambda: self.server.get("/v1/videos?status=in_progress").json["data"], 20, "start")
            job_id = self.server.get("/v1/videos?status=in_progress").json["data"][0]["id"]
            self.server.in_stage(job_id, "denoise")
            start = time.monotonic()
            connection.close()
            self.free_soon(start)
            job = self.server.job(job_id)
            self.assertEqual((job["status"], job["error"]["message"]), ("cancelled", "the client closed the connection"))

    def test_stream_survives_nobody(self):
        """A follower that leaves changes nothing for the job."""
        job_id = self.server.submit(steps=2)
        stream = events(self.server, job_id)
        next(stream)
        stream.close()
        self.assertEqual(self.server.finished(job_id)["status"], "completed")


class EveryStage(unittest.TestCase):
    """Cancelled, and left by its client, in every stage of a clip with keyframes, each slowed down in turn."""
    STAGES = ("encode pictures", "encode text", "denoise", "decode audio", "decode video")

    def test_cancel_and_disconnect(self):
        with open(PICTURE, "rb") as file:
            picture = base64.b64encode(file.read()).decode()
        body = {**SMALL, "num_frames": 39, "input_reference": picture}
        for stage in self.STAGES:
            server = Server(env={"H3_TEST_BLOCK_MS": "100", "H3_TEST_BLOCK_STAGE": stage})
            try:
                with self.subTest(stage, how="cancel"):
                    job_id = server.submit(**body)
                    server.in_stage(job_id, stage)
                    start = time.monotonic()
                    server.post("/v1/videos/%s/cancel" % job_id)
                    self.over(server, job_id, start)
                with self.subTest(stage, how="disconnect"):
                    connection = server.connect()
                    connection.request("POST", "/v1/videos/sync", json.dumps(body), {"Content-Type": "application/json"})
                    job_id = server.until(lambda: server.get("/v1/videos?status=in_progress").json["data"], 20, "start")[0]["id"]
                    server.in_stage(job_id, stage)
                    start = time.monotonic()
                    connection.close()
                    self.over(server, job_id, start)
                with self.subTest(stage, how="and then another job"):
                    job = server.finished(server.submit())
                    self.assertEqual((job["status"], job["attempts"]), ("completed", 1))
            finally:
                server.close()

    def over(self, server, job_id, start):
        job = server.finished(job_id, 20)
        self.assertEqual((job["status"], job["url"]), ("cancelled", None))
        self.assertLess(time.monotonic() - start, 0.2 + 2 * SLOW)  # two blocks, and what the machine needs for the rest
        server.until(lambda: not server.get("/ready").json["running"], 10, "free device")
        self.assertFalse(os.path.exists(os.path.join(server.folder, "data/jobs", job_id)))


class Failing(unittest.TestCase):
    def attempt(self, fault, attempts=1):
        server = Server(env={"H3_TEST_FAULT": fault, "H3_TEST_FAULT_ATTEMPTS": str(attempts)})
        try:
            job = server.finished(server.submit())
            second = server.finished(server.submit(seed=2))
            server.until(lambda: server.get("/ready").status == 200, 30, "a worker")
            workers = subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True).stdout.split()
            self.assertEqual(len(workers), 1, "one worker at a time")
            return job, second, server.get("/ready").json, server.get("/metrics").body.decode()
        finally:
            server.close()

    def test_device_failure_is_retried_once(self):
        job, _, ready, metrics = self.attempt("device@denoise")
        self.assertEqual((job["status"], job["attempts"]), ("completed", 2))
        self.assertTrue(any("uncorrectable" in w and "once more" in w for w in job["warnings"]), job["warnings"])
        self.assertGreaterEqual(ready["worker_restarts"], 1)
        self.assertIn('h3_worker_restarts_total{reason="device"}', metrics)

    def test_lost_context_is_retried_once(self):
        job, second, ready, _ = self.attempt("context@decode video")
        self.assertEqual((job["status"], job["attempts"], second["status"], second["attempts"]), ("completed", 2, "completed", 2))
        self.assertTrue(any("lost its context" in w and "once more" in w for w in job["warnings"]), job["warnings"])
        self.assertEqual(ready["worker_restarts"], 2)

    def test_a_second_device_failure_is_final(self):
        job, _, ready, _ = self.attempt("device@denoise", attempts=2)
        self.assertEqual((job["status"], job["attempts"], job["error"]["code"]), ("failed", 2, "device_error"))
        self.assertIn("this was the second attempt", job["error"]["message"])
        self.assertEqual(ready["worker_restarts"], 4)

    def test_killed_worker_is_replaced(self):
        job, second, ready, metrics = self.attempt("kill@decode video")
        self.assertEqual((job["status"], job["attempts"], second["status"]), ("completed", 2, "completed"))
        self.assertTrue(any("signal 9" in w for w in job["warnings"]), job["warnings"])
        self.assertIn('h3_worker_restarts_total{reason="crash"}', metrics)

    def test_other_failures_are_final(self):
        job, _, ready, _ = self.attempt("data@denoise")
        self.assertEqual((job["status"], job["attempts"], job["error"]["code"]), ("failed", 1, "data"))
        self.assertIn("file changed", job["error"]["message"])
        self.assertEqual(ready["worker_restarts"], 0)

    def test_flags_that_cannot_work_end_the_server(self):
        run = subprocess.run([PROGRAM, "serve", "--port", "0", "--device", "cuda:99", "--data-dir", tempfile.mkdtemp()],
                             capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertIn("device", run.stderr)

    def test_one_server_per_folder(self):
        server = Server()
        try:
            run = subprocess.run([PROGRAM, "serve", "--port", "0", "--data-dir", os.path.join(server.folder, "data")],
                                 capture_output=True, text=True, timeout=60)
            self.assertEqual(run.returncode, 2)
            self.assertIn("in use by another server", run.stderr)
        finally:
            server.close()


if __name__ == "__main__":
    main()
