"""Ten minutes of everything at once, and flat memory."""
import base64
import random
import statistics
import threading

from harness import *

SECONDS = float(os.environ.get("H3_TEST_SOAK_SECONDS", "600" if SLOW == 1 else "60"))
SEED = int(os.environ.get("H3_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 30)


def resident(pid):
    """MiB of the process that are its own."""
    with open("/proc/%d/smaps_rollup" % pid) as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(("Private_Dirty:", "Private_Clean:"))) / 1024


class Soak(ServerTest):
    flags = ("--keep-jobs", "20", "--max-queue", "4")

    def worker(self):
        out = subprocess.run(["pgrep", "-P", str(self.server.process.pid)], capture_output=True, text=True).stdout
        return int(out.split()[0])

    def ended(self, job_id):
        """The job when it is over. However slow the machine is, something must get on: the client waits as long as anything that the
        server says of its jobs changes."""
        seen, since = None, time.monotonic()
        while time.monotonic() - since < 120 * SLOW:
            job = self.server.job(job_id)
            if job["status"] in ("completed", "failed", "cancelled"):
                return job
            running = self.server.get("/v1/videos?status=in_progress").json["data"]
            state = [(job["queue_position"], job["status"])] + [(other["id"], other["stage"], other["stage_done"]) for other in running]
            if state != seen:
                seen, since = state, time.monotonic()
            time.sleep(0.05)
        raise AssertionError("nothing moves: %s\n%s" % (seen, self.server.log_text()[-2000:]))

    def client(self, seed):
        """One of many: makes clips, cancels some, follows some, asks for nonsense now and then."""
        dice = random.Random(seed)
        with open(PICTURE, "rb") as file:
            picture = file.read()
        try:
            while not self.over.is_set():
                fields = {**SMALL, "seed": dice.randrange(1000), "steps": dice.randint(1, 3), "audio": dice.random() < 0.7}
                if dice.random() < 0.3:
                    fields["input_reference"] = base64.b64encode(picture).decode()
                reply = self.server.post("/v1/videos", fields)
                self.count(reply.status)
                if reply.status != 200:
                    assert reply.status == 503, reply.body
                    self.over.wait(0.2)
                    continue
                job_id = reply.json["id"]
                choice = dice.random()
                if choice < 0.2:
                    self.server.post("/v1/videos/%s/cancel" % job_id)
                elif choice < 0.5:
                    last = None
                    for last, _ in events(self.server, job_id):
                        pass
                    assert last in ("completed", "cancelled", "deleted"), last
                elif choice < 0.6:
                    self.server.request("DELETE", "/v1/videos/" + job_id)
                else:
                    job = self.ended(job_id)
                    if job["status"] == "completed":
                        self.count(self.server.get(job["url"]).status)
                self.count(self.server.post("/v1/videos", {"prompt": "x", "secnods": 1}).status)
                self.count(self.server.get("/v1/videos?limit=10").status)
                self.count(self.server.get("/metrics").status)
                self.count(self.server.get("/v1/videos/video_nobody").status)
        except BaseException as error:
            self.errors.append(repr(error))
            raise

    def count(self, status):
        with self.lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1

    def test_memory_is_flat(self):
        print("seed", SEED)
        self.over, self.lock, self.statuses, self.errors = threading.Event(), threading.Lock(), {}, []
        self.ended(self.server.submit())
        worker = self.worker()
        threads = [threading.Thread(target=self.client, args=(SEED + i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        samples, start = [], time.monotonic()
        while time.monotonic() - start < SECONDS and not self.errors:
            time.sleep(max(0.5, SECONDS / 120))
            samples.append((resident(self.server.process.pid), resident(worker)))
        self.over.set()
        for thread in threads:
            thread.join()
        self.assertEqual(self.errors, [])
        self.assertEqual(self.worker(), worker, "the worker was replaced")
        self.assertEqual(self.server.get("/ready").json["worker_restarts"], 0)
        self.assertEqual({s for s in self.statuses} - {200, 400, 404, 503}, set(), self.statuses)
        third = len(samples) // 3
        for name, column in (("server", 0), ("worker", 1)):
            middle = statistics.median(s[column] for s in samples[third:2 * third])
            last = statistics.median(s[column] for s in samples[2 * third:])
            print("%s: %.1f MiB in the middle third, %.1f MiB in the last, of %.0f s; answers %s" % (name, middle, last, SECONDS, self.statuses))
            if SLOW == 1:  # sanitizers keep what is freed
                self.assertLess(last, middle * 1.03 + 2)
        folders = os.listdir(os.path.join(self.folder, "data/jobs"))
        self.assertLessEqual(len(folders), 25)


if __name__ == "__main__":
    main()
