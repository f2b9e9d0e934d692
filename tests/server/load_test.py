"""What 500 readers at 1 Hz and 50 event streams cost: the worker in speed, a client in patience. Answers are checked; times
are printed, because they say as much about the machine as about the server."""
import statistics

from harness import *
from load import Load

READERS = int(os.environ.get("H3_TEST_READERS", "500" if SLOW == 1 else "100"))
STREAMS, ROUNDS = 50, 3
SECONDS = float(os.environ.get("H3_TEST_LOAD_SECONDS", "8"))
# About a second per evaluation on one core, so that a measurement is long against the scheduler's slices.
JOB = {"prompt": "a red ball bounces", "size": "128x128", "num_frames": 73, "steps": 1000}


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


class LoadTest(ServerTest):
    flags = ("--nice", "5")

    def worker(self):
        out = subprocess.run(["pgrep", "-P", str(self.server.process.pid)], capture_output=True, text=True).stdout
        return int(out.split()[0])

    def rate(self, job_id, seconds):
        """Evaluations per second of wall time and per second of the worker's own processor time."""
        start, cpu, step = time.monotonic(), cpu_seconds(self.worker()), self.server.job(job_id)
        time.sleep(seconds)
        done = self.server.job(job_id)["step"] - step["step"]
        return done / (time.monotonic() - start), done / (cpu_seconds(self.worker()) - cpu)

    def test_readers_and_streams(self):
        for seed in range(10):  # a history to list
            self.server.finished(self.server.submit(seed=seed))
        job_id = self.server.submit(**JOB)
        self.server.until(lambda: self.server.job(job_id)["step"] > 2, 60, "steps")
        paths = ["/v1/videos/" + job_id] * 7 + ["/ready", "/v1/videos?limit=5", "/metrics"]
        quiet, loaded, latencies, client, server_cpu = [], [], [], [], []
        for _ in range(ROUNDS):
            quiet.append(self.rate(job_id, SECONDS))
            load = Load(self.server.port, READERS, STREAMS, paths, job_id)
            load.start()
            cpu, start = cpu_seconds(self.server.process.pid), time.monotonic()
            loaded.append(self.rate(job_id, SECONDS))
            server_cpu.append((cpu_seconds(self.server.process.pid) - cpu) / (time.monotonic() - start))
            seen = load.stop()
            self.assertEqual(set(seen["statuses"]), {200})
            self.assertEqual(seen["broken"], 0)
            self.assertGreaterEqual(len(seen["latencies"]), READERS * SECONDS * 0.5)
            self.assertGreater(seen["events"], STREAMS)
            latencies += seen["latencies"]
            client.append(seen["cpu"])
        self.server.post("/v1/videos/%s/cancel" % job_id)
        self.server.finished(job_id)
        for what, column in (("wall time", 0), ("its own processor time", 1)):
            before, after = (statistics.median(r[column] for r in rates) for rates in (quiet, loaded))
            print("worker, by %s: %.3f evaluations/s quiet, %.3f loaded, %.1f %% slower" % (what, before, after, 100 * (1 - after / before)))
        print("%d readers at 1 Hz, %d streams: p50 %.1f ms, p99 %.1f ms of %d answers" %
              (READERS, STREAMS, 1e3 * percentile(latencies, 0.5), 1e3 * percentile(latencies, 0.99), len(latencies)))
        print("the server used %.2f of a core, the clients %.2f" % (statistics.median(server_cpu), statistics.median(client)))


if __name__ == "__main__":
    main()
