"""Clients by the hundred, in a process of their own: readers that poll once a second and followers of event streams."""
import asyncio
import json
import multiprocessing
import time


class Load:
    """Runs in the background between start() and stop(); stop() returns what the clients saw."""

    def __init__(self, port, readers, streams, paths, job_id):
        context = multiprocessing.get_context("spawn")
        self.ours, theirs = context.Pipe()
        self.process = context.Process(target=run, args=(theirs, port, readers, streams, paths, job_id))

    def start(self):
        self.process.start()
        assert self.ours.recv() == "connected"

    def stop(self):
        self.ours.send("stop")
        seen = self.ours.recv()
        self.process.join()
        return seen


def run(pipe, port, readers, streams, paths, job_id):
    pipe.send(asyncio.run(clients(pipe, port, readers, streams, paths, job_id)))


async def clients(pipe, port, readers, streams, paths, job_id):
    seen = {"latencies": [], "statuses": {}, "events": 0, "broken": 0}
    over = asyncio.Event()
    tasks = [asyncio.create_task(reader(port, paths[i % len(paths)], i / readers, seen, over)) for i in range(readers)]
    tasks += [asyncio.create_task(follower(port, job_id, seen, over)) for _ in range(streams)]
    await asyncio.sleep(1)
    pipe.send("connected")
    cpu = time.process_time()
    start = time.monotonic()
    while not pipe.poll():
        await asyncio.sleep(0.1)
    over.set()
    seen["cpu"] = (time.process_time() - cpu) / (time.monotonic() - start)
    await asyncio.gather(*tasks)
    return seen


async def answer(streams, path):
    reader, writer = streams
    writer.write(("GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    await reader.readexactly(int(length[0].split(b":")[1]))
    return int(head.split(b" ")[1])


async def reader(port, path, offset, seen, over):
    await asyncio.sleep(offset)
    streams = None
    while not over.is_set():
        start = time.perf_counter()
        try:
            if streams is None:
                streams = await asyncio.open_connection("127.0.0.1", port)
            status = await answer(streams, path)
            seen["statuses"][status] = seen["statuses"].get(status, 0) + 1
            seen["latencies"].append(time.perf_counter() - start)
        except (OSError, asyncio.IncompleteReadError):
            seen["broken"] += 1
            streams = None
        try:
            await asyncio.wait_for(over.wait(), max(0, 1 - (time.perf_counter() - start)))
        except asyncio.TimeoutError:
            pass
    if streams:
        streams[1].close()


async def follower(port, job_id, seen, over):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(("GET /v1/videos/%s/events HTTP/1.1\r\nHost: localhost\r\n\r\n" % job_id).encode())
    status = int((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1])
    seen["statuses"][status] = seen["statuses"].get(status, 0) + 1
    line = asyncio.create_task(reader.readline())
    while not over.is_set():
        done, _ = await asyncio.wait({line}, timeout=0.2)
        if not done:
            continue
        text = line.result()
        if not text:
            break
        if text.startswith(b"data: "):
            json.loads(text[6:])
            seen["events"] += 1
        line = asyncio.create_task(reader.readline())
    line.cancel()
    writer.close()
