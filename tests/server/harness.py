"""Starts the real program and talks to it. Standard library only."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.environ["H3_PROGRAM"]
DISTURBED = os.environ["H3_DISTURBED"]  # the same server with a worker that pauses or fails on demand
SOURCE = os.environ["H3_SOURCE_DIR"]
FIXTURES = os.path.join(os.path.dirname(__file__), "fixtures")
PICTURE = os.path.join(SOURCE, "models/demo/reference/kf_first.png")
# The smallest clip that the demo model makes.
SMALL = {"prompt": "a red ball bounces", "size": "32x32", "num_frames": 5, "steps": 1}
SLOW = 6 if os.environ.get("H3_TEST_PATIENCE") else 1  # sanitizers


class Reply:
    def __init__(self, response, body):
        self.status, self.headers, self.body = response.status, response.headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


class Server:
    """One `h3 serve` on a free port. Restarting keeps the data folder. With H3_TEST_... in env its worker is disturbed
    (disturbed_server.cpp)."""

    def __init__(self, *flags, env=None, folder=None):
        self.folder = folder or tempfile.mkdtemp(prefix="h3-serve-")
        self.flags, self.env, self.process = list(flags), dict(env or {}), None
        try:
            self.start()
        except BaseException:
            if folder is None:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def start(self, wait=True):
        """Nothing is left running when it fails."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("H3_")}
        environment.update(self.env)
        program = DISTURBED if any(name.startswith("H3_TEST_") for name in self.env) else PROGRAM
        self.log = open(os.path.join(self.folder, "log"), "ab")
        self.process = subprocess.Popen(
            [program, "serve", "--port", "0", "--data-dir", os.path.join(self.folder, "data"), "--threads", "1"] + self.flags,
            stdout=subprocess.PIPE, stderr=self.log, env=environment)
        try:
            line = self.process.stdout.readline().decode()
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
            if not found:
                raise AssertionError("did not start: %r %s" % (line, self.log_text()))
            self.port = int(found.group(1))
            if wait:
                self.until(lambda: self.get("/ready").status == 200, 30, "ready")
        except BaseException:
            self.kill()
            raise

    def log_text(self):
        with open(os.path.join(self.folder, "log"), errors="replace") as file:
            return file.read()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30 * SLOW)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError("did not stop")
        code = self.process.returncode
        self.process.stdout.close()
        self.log.close()
        return code

    def close(self):
        try:
            if self.process.poll() is None:
                self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=60):
        connection = self.connect(timeout)
        headers = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Reply(response, response.read())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body=None, **more):
        return self.request("POST", path, body, **more)

    def submit(self, **fields):
        reply = self.post("/v1/videos", {**SMALL, **fields})
        if reply.status != 200:
            raise AssertionError(reply.body)
        return reply.json["id"]

    def job(self, job_id):
        return self.get("/v1/videos/" + job_id).json

    def until(self, condition, seconds, what):
        end = time.monotonic() + seconds * SLOW
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError("the server ended: " + self.log_text())
            try:
                value = condition()
                if value:
                    return value
            except (ConnectionError, socket.timeout):
                pass
            time.sleep(0.02)
        raise AssertionError("not in time: " + what + "\n" + self.log_text()[-2000:])

    def finished(self, job_id, seconds=60):
        def over():
            job = self.job(job_id)
            return job if job["status"] in ("completed", "failed", "cancelled") else None
        return self.until(over, seconds, "end of " + job_id)

    def in_stage(self, job_id, stage, seconds=60):
        return self.until(lambda: self.job(job_id)["stage"] == stage, seconds, stage)

    def raw(self, data, timeout=30):
        """Sends bytes as they are and returns what comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
            connection.sendall(data)
            out = b""
            try:
                while True:
                    piece = connection.recv(65536)
                    if not piece:
                        break
                    out += piece
            except socket.timeout:
                pass
            return out


def multipart(fields, boundary="h3-test-boundary"):
    """fields: (name, text) or (name, (file name, bytes, type))."""
    out = b""
    for name, value in fields:
        out += b"--" + boundary.encode() + b"\r\n"
        if isinstance(value, tuple):
            out += ('Content-Disposition: form-data; name="%s"; filename="%s"\r\nContent-Type: %s\r\n\r\n'
                    % (name, value[0], value[2])).encode() + value[1]
        else:
            out += ('Content-Disposition: form-data; name="%s"\r\n\r\n' % name).encode() + str(value).encode()
        out += b"\r\n"
    return out + b"--" + boundary.encode() + b"--\r\n", {"Content-Type": "multipart/form-data; boundary=" + boundary}


def events(server, job_id, seconds=60, path=None):
    """(event, data) of a job until the stream ends."""
    connection = server.connect(seconds * SLOW)
    connection.request("GET", path or "/v1/videos/%s/events" % job_id)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    name = None
    try:
        for raw in response:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                yield name, json.loads(line[6:])
    finally:
        response.close()
        connection.close()


class ServerTest(unittest.TestCase):
    """One server for all tests of a class."""
    flags, env = (), {}

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="h3-serve-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.server = Server(*cls.make_flags(), env=cls.env, folder=cls.folder)
        cls.addClassCleanup(cls.server.close)

    @classmethod
    def make_flags(cls):
        return cls.flags

    def refused(self, reply, status, code=None, param=None):
        self.assertEqual(reply.status, status, reply.body)
        self.assertTrue(reply.error["message"])
        if code:
            self.assertEqual(reply.error["code"], code)
        if param:
            self.assertEqual(reply.error["param"], param)
        return reply.error


def main():
    unittest.main(module=sys.modules["__main__"], verbosity=2)
