"""Chromium through chromedriver's HTTP protocol (W3C WebDriver). Standard library only."""
import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

DRIVER, CHROMIUM = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("chromium-browser")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element's reference, fixed by the standard
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Space": " ", "Escape": "\ue00c", "Shift": "\ue008", "Control": "\ue009"}


class Element:
    def __init__(self, browser, reference):
        self.browser, self.path, self.reference = browser, "/element/" + reference, reference

    def click(self):
        self.browser.call("POST", self.path + "/click", {})

    def type(self, text):
        self.browser.call("POST", self.path + "/value", {"text": text})

    def clear(self):
        self.browser.call("POST", self.path + "/clear", {})

    def write(self, text):
        self.clear()
        self.type(text)

    @property
    def text(self):
        return self.browser.call("GET", self.path + "/text")

    def value(self, name):
        return self.browser.call("GET", self.path + "/property/" + name)

    @property
    def shown(self):
        return self.browser.call("GET", self.path + "/displayed")

    @property
    def name(self):
        """What a screen reader says."""
        return self.browser.call("GET", self.path + "/computedlabel")


class Browser:
    def __init__(self):
        self.driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.base, port = None, None
        while port is None:
            line = self.driver.stdout.readline()
            if not line:
                raise AssertionError("chromedriver did not start")
            port = re.search(r"started successfully on port (\d+)", line)
        self.root = "http://127.0.0.1:" + port.group(1)
        options = {"binary": CHROMIUM, "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                                                "--window-size=1280,900", "--autoplay-policy=no-user-gesture-required"]}
        try:
            session = self.send("POST", self.root + "/session", {"capabilities": {"alwaysMatch": {
                "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        except BaseException:
            self.close()
            raise
        self.base = self.root + "/session/" + session["sessionId"]

    def close(self):
        if self.base:
            self.send("DELETE", self.base)
        self.driver.terminate()
        self.driver.wait()
        self.driver.stdout.close()

    @staticmethod
    def send(method, url, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            value = json.loads(error.read())["value"]
            raise AssertionError("%s: %s" % (value["error"], value["message"].split("\n")[0])) from None

    def call(self, method, path, body=None):
        return self.send(method, self.base + path, body)

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def refresh(self):
        self.call("POST", "/refresh", {})

    def find(self, css):
        return Element(self, self.call("POST", "/element", {"using": "css selector", "value": css})[ELEMENT])

    def all(self, css):
        return [Element(self, found[ELEMENT]) for found in self.call("POST", "/elements", {"using": "css selector", "value": css})]

    def texts(self, css):
        """All at one moment: the page may draw itself anew between two questions."""
        return self.script("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", css)

    def focused(self):
        return Element(self, self.call("GET", "/element/active")[ELEMENT])

    def script(self, text, *arguments):
        return self.call("POST", "/execute/sync", {"script": text, "args": list(arguments)})

    def press(self, *keys, hold=()):
        """Presses keys as somebody at the keyboard does, wherever the focus is."""
        actions = [{"type": "keyDown", "value": KEYS[key]} for key in hold]
        for key in keys:
            actions += [{"type": "keyDown", "value": KEYS.get(key, key)}, {"type": "keyUp", "value": KEYS.get(key, key)}]
        actions += [{"type": "keyUp", "value": KEYS[key]} for key in hold]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def devtools(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def width(self, pixels, height=900):
        self.devtools("Emulation.setDeviceMetricsOverride", width=pixels, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, dark):
        self.devtools("Emulation.setEmulatedMedia",
                      features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def picture(self):
        """A PNG of what is on the screen."""
        return base64.b64decode(self.call("GET", "/screenshot"))

    def problems(self):
        """What the console complained about since the last call."""
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]

    def until(self, condition, seconds, what):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError("not in time: " + what)
