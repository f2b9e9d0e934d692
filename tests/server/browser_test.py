"""The page in a real browser, against the real server with the demo model."""
import base64

from browser import *
from harness import *

BALL = "A red ball bounces on a black background with a beep at every bounce."
PICTURES = os.environ.get("H3_TEST_PICTURES")  # a folder: also write the pictures of docs/images there

# Text whose contrast with the ground below it is under 4.5 : 1, and controls whose border is under 3 : 1 (WCAG 1.4.3, 1.4.11).
CONTRAST = """
const rgb = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
const light = ([r, g, b]) => { const c = [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; };
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; }
  return [255, 255, 255, 1]; };
const bad = [];
let seen = 0;
for (const e of document.querySelectorAll('body *')) {
  if (!e.checkVisibility() || e.closest('video')) continue;
  const style = getComputedStyle(e), own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  const control = e.matches('input:not([type=checkbox]):not([type=file]), select, textarea, button');
  if (own || e.matches('input, select, textarea')) {
    ++seen;
    const r = ratio(rgb(style.color), ground(e));
    if (r < 4.5) bad.push(`${e.tagName} ${e.id} ${e.className}: text ${r.toFixed(2)}`);
  }
  if (control && Math.max(ratio(rgb(style.borderTopColor), ground(e.parentElement)), ratio(ground(e), ground(e.parentElement))) < 3)
    bad.push(`${e.tagName} ${e.id}: border`);
}
return [seen, bad];
"""

# Controls that a screen reader has no words for, and pictures without alt.
NAMELESS = """
return [...document.querySelectorAll('input, select, textarea, button, a, img, canvas, video, progress')]
  .filter((e) => e.checkVisibility() && e.getAttribute('aria-hidden') !== 'true' && !(e.matches('img') && e.alt === ''))
  .filter((e) => !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.getAttribute('alt') && !e.textContent.trim()
    && !e.matches('video'))
  .map((e) => e.outerHTML.slice(0, 120));
"""


@unittest.skipUnless(DRIVER and CHROMIUM, "needs chromium and chromium-driver")
class BrowserTest(unittest.TestCase):
    flags, env = (), {"H3_TEST_BLOCK_MS": "40"}

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.flags, env=cls.env)
        cls.addClassCleanup(cls.server.close)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.browser.width(1280)
        self.browser.scheme(dark=False)
        self.open()

    def open(self, wait=True):
        page = "http://127.0.0.1:%d" % self.server.port
        self.browser.open("about:blank")
        self.browser.devtools("Storage.clearDataForOrigin", origin=page, storageTypes="all")
        self.browser.open(page + "/")
        if wait:
            self.loaded()

    def loaded(self):
        self.until(lambda: self.browser.script("return document.body.dataset.ready"), "page")

    def tearDown(self):
        for job in self.server.get("/v1/videos", headers=self.headers()).json["data"]:
            self.server.request("DELETE", "/v1/videos/" + job["id"], headers=self.headers())
        # A refused request is logged by the browser itself; scripts and the content policy must be silent.
        self.assertEqual([line for line in self.browser.problems() if "Failed to load resource" not in line], [])

    def headers(self):
        return {}

    def until(self, condition, what, seconds=30):
        return self.browser.until(condition, seconds * SLOW, what)

    def find(self, css):
        return self.browser.find(css)

    def description(self, css):
        """What a screen reader adds to the name of a field."""
        return self.browser.script("""const ids = document.querySelector(arguments[0]).getAttribute('aria-describedby') || '';
            return ids.split(' ').filter(Boolean).map((id) => document.getElementById(id).textContent).join(' ')""", css)

    def choose(self, css, value):
        self.browser.script("const s = document.querySelector(arguments[0]); s.value = arguments[1];"
                            "s.dispatchEvent(new Event('input', {bubbles: true}))", css, value)

    def status(self):
        return self.browser.script("return document.getElementById('result').dataset.status || ''")

    def jobs(self):
        return self.server.get("/v1/videos").json["data"]

    def submit(self, prompt=BALL, **values):
        self.find("#prompt").write(prompt)
        for name, value in values.items():
            self.choose("#" + name, value)
        self.find("#submit").click()

    def in_denoise(self):
        self.until(lambda: self.find("#running").shown and "denoise" in self.find("#stage").text, "denoise")

    def completed(self, seconds=60):
        self.until(lambda: self.status() == "completed" and self.find("#player").shown, "clip", seconds)

    def hold_estimates(self):
        """The first answer of /v1/videos/estimate from now on waits for let_go()."""
        self.browser.script("""
            const real = window.fetch;
            window.answers = 0;
            window.read = 0;
            const gate = new Promise((done) => { window.letGo = done; });
            window.fetch = async (path, ...more) => {
              if (!String(path).endsWith('/estimate')) return real(path, ...more);
              const first = window.answers++ === 0, answer = await real(path, ...more), body = await answer.text();
              if (first) await gate;
              const copy = new Response(body, {status: answer.status});
              copy.json = async () => {
                setTimeout(() => { if (first) window.read = 1; }, 50);  // after the page has dealt with it
                return JSON.parse(body);
              };
              return copy;
            };""")

    def let_go(self):
        self.until(lambda: self.browser.script("return window.answers") > 0, "a question")
        self.browser.script("window.letGo()")
        self.until(lambda: self.browser.script("return window.read"), "the late answer")

    def picture(self, name):
        if PICTURES:
            with open(os.path.join(PICTURES, name + ".png"), "wb") as file:
                file.write(self.browser.picture())


class Page(BrowserTest):
    def test_text_to_clip(self):
        self.submit()
        self.in_denoise()
        self.assertRegex(self.find("#stage").text, r"denoise \d of 8")
        self.assertTrue(self.find("#cancel").shown)
        self.until(lambda: self.find("#preview").shown and self.find("#preview").value("naturalWidth"), "preview")
        self.picture("page-preview")
        self.completed()
        self.assertFalse(self.find("#preview").shown)
        played = self.until(lambda: self.browser.script(
            "const p = document.getElementById('player'); return p.readyState >= 2 && [p.videoWidth, p.videoHeight, p.duration]"), "player")
        self.assertEqual(played[:2], [128, 128])
        self.assertAlmostEqual(played[2], 22 / 24, delta=0.05)
        sound = self.browser.script("return document.getElementById('player').webkitAudioDecodedByteCount")
        self.browser.script("document.getElementById('player').play()")
        self.until(lambda: self.browser.script("return document.getElementById('player').webkitAudioDecodedByteCount") > sound, "sound")
        job = self.jobs()[0]
        self.assertIn("/v1/videos/%s/content?download=1" % job["id"], self.find("#download").value("href"))
        self.find("#report summary").click()
        report = self.until(lambda: "peak memory" in self.find("#report").text and self.find("#report").text, "report")
        for line in ("run 8", "reused 0", "forecast 0", "denoise", "total", "seed 42"):
            self.assertIn(line, report)
        self.until(lambda: self.browser.all("#history li"), "history")
        self.assertIn(BALL, self.find("#history").text)
        self.picture("page-report")
        self.find("#report summary").click()

    def test_keyframe_to_clip_and_again(self):
        self.find("#first").type(PICTURE)
        canvas = self.until(lambda: self.find(".drop[data-slot=first] canvas").shown and self.find(".drop[data-slot=first] canvas"), "crop")
        self.assertEqual((canvas.value("width"), canvas.value("height")), (128, 128))
        self.assertIn("kf_first.png", self.find(".drop[data-slot=first]").text)
        self.submit("A green star moves left.", seed="7")
        self.completed()
        job = self.jobs()[0]
        self.assertIn("first_frame", job["inputs"])
        with open(PICTURE, "rb") as file:
            self.assertEqual(self.server.get(job["inputs"]["first_frame"]).body, file.read())
        # The form is emptied, and the history fills it again, picture included.
        self.find(".drop[data-slot=first] .remove").click()
        self.find("#prompt").write("something else")
        self.choose("#seed", "1")
        self.find("#history [aria-label^='Again']").click()
        self.until(lambda: self.find("#prompt").value("value") == "A green star moves left.", "inputs")
        self.until(lambda: self.find(".drop[data-slot=first] canvas").shown, "picture")
        self.assertEqual(self.find("#seed").value("value"), "7")
        self.find("#submit").click()
        self.until(lambda: len(self.jobs()) == 2 and all(j["status"] == "completed" for j in self.jobs()), "second clip", 60)
        clips = {self.server.get(j["url"]).body for j in self.jobs()}
        self.assertEqual(len(clips), 1, "the same inputs make the same clip")
        self.picture("page-keyframe")

    def test_dropped_picture(self):
        with open(PICTURE, "rb") as file:
            encoded = base64.b64encode(file.read()).decode()
        self.browser.script("""
            const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0)), data = new DataTransfer();
            data.items.add(new File([bytes], 'dropped.png', {type: 'image/png'}));
            const zone = document.querySelector('.drop[data-slot=last]');
            for (const name of ['dragover', 'drop']) zone.dispatchEvent(new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true}));
            """, encoded)
        self.until(lambda: self.find(".drop[data-slot=last] canvas").shown, "crop")
        self.assertTrue(self.find("#fit-row").shown)
        self.choose("#size", self.browser.script("return document.querySelector('#size option:nth-child(3)').value"))
        canvas = self.find(".drop[data-slot=last] canvas")
        self.assertEqual("%dx%d" % (canvas.value("width"), canvas.value("height")), self.find("#size").value("value"))
        self.find(".drop[data-slot=last] .remove").click()
        self.assertFalse(self.find("#fit-row").shown)

    def test_cancel(self):
        self.submit(num_inference_steps="100")
        self.in_denoise()
        self.find("#cancel").click()
        self.until(lambda: self.status() == "cancelled", "cancelled")
        self.assertFalse(self.find("#running").shown)
        self.assertEqual(self.jobs()[0]["status"], "cancelled")

    def test_refresh_keeps_everything(self):
        self.submit(num_inference_steps="30", seed="11")
        self.in_denoise()
        self.browser.refresh()
        self.loaded()
        self.until(lambda: self.find("#running").shown, "progress after the refresh")
        self.assertEqual(self.find("#prompt").value("value"), BALL)
        self.assertEqual(self.find("#seed").value("value"), "11")
        self.assertEqual(self.find("#num_inference_steps").value("value"), "30")
        self.assertEqual(len(self.jobs()), 1, "a refresh sends nothing twice")
        # Another tab knows nothing but the server, and finds the job in its queue.
        self.open()
        self.until(lambda: self.browser.all("#queue li"), "queue")
        self.find("#queue [aria-label^='Show']").click()
        self.completed(180)
        self.browser.refresh()
        self.loaded()
        self.completed()

    def test_queue_order(self):
        first = self.server.submit(steps=300, prompt="first")
        self.server.in_stage(first, "denoise")
        second, third = [self.server.submit(steps=1, prompt=name) for name in ("second", "third")]
        self.until(lambda: len(self.browser.all("#queue li")) == 3, "queue")
        self.find("[aria-label='Move up: third']").click()
        self.until(lambda: self.server.job(third)["queue_position"] == 1, "move")
        self.until(lambda: self.browser.texts("#queue b") == ["first", "third", "second"], "order")
        self.find("[aria-label='Cancel: second']").click()
        self.until(lambda: self.server.job(second)["status"] == "cancelled", "cancel")
        self.find("[aria-label='Cancel: first']").click()
        self.until(lambda: "first" in self.find("#history").text, "history")
        self.find("[aria-label='Delete: first']").click()
        self.until(lambda: self.server.get("/v1/videos/" + first).status == 404, "deletion")

    def test_errors_say_what_to_change(self):
        self.find("#submit").click()
        error = self.until(lambda: self.find("#error").shown and self.find("#error").text, "error")
        self.assertIn("prompt: it is empty, describe the clip", error)
        self.assertEqual(self.find("#prompt").value("ariaInvalid"), "true")
        self.assertIn(error, self.description("#prompt"))
        self.submit(num_inference_steps="5000")
        error = self.until(lambda: "evaluations" in self.find("#error").text or "1000" in self.find("#error").text
                           and self.find("#error").text, "error")
        self.assertEqual(self.find("#num_inference_steps").value("ariaInvalid"), "true")
        self.assertEqual(self.find("#prompt").value("ariaInvalid"), None)
        self.assertIn(error, self.description("#num_inference_steps"))
        self.assertNotIn(error, self.description("#prompt"))
        self.choose("#num_inference_steps", "2")
        self.until(lambda: not self.find("#error").shown, "the error goes when it is repaired")
        self.assertEqual(self.description("#num_inference_steps"), "")
        self.find("#first").type(os.path.abspath(__file__))  # not a picture
        self.until(lambda: "cannot be shown" in self.find(".drop[data-slot=first]").text, "hint")
        self.find("#submit").click()
        error = self.until(lambda: self.find("#error").shown and self.find("#error").text, "error")
        self.assertIn("input_reference", error)
        self.assertEqual(self.find("#first").value("ariaInvalid"), "true")
        self.assertEqual(self.jobs(), [])

    def test_an_error_of_the_prompt_goes_with_it(self):
        self.find("#prompt").write("<|image_pad|>")
        self.until(lambda: "image_pad" in self.find("#error").text, "error")
        self.find("#prompt").write("")
        self.browser.script("document.getElementById('prompt').dispatchEvent(new Event('input', {bubbles: true}))")
        self.until(lambda: not self.find("#error").shown, "the error goes with the prompt")
        self.assertEqual(self.find("#prompt").value("ariaInvalid"), None)

    def test_a_clip_is_asked_for_once(self):
        self.find("#prompt").write(BALL)
        self.choose("#num_inference_steps", "1")
        self.browser.script("""
            const real = window.fetch;
            window.sent = 0;
            window.fetch = async (path, ...more) => {
              if (String(path) !== '/v1/videos') return real(path, ...more);
              ++window.sent;
              await new Promise((done) => { window.release = done; });
              return real(path, ...more);
            };""")
        self.browser.script("document.getElementById('prompt').focus()")
        for _ in range(3):
            self.browser.press("Enter", hold=("Control",))
        self.browser.script("window.release()")
        self.completed()
        self.assertEqual(self.browser.script("return window.sent"), 1)
        self.assertEqual(len(self.jobs()), 1)

    def test_keyboard(self):
        self.browser.press("Tab")
        self.assertEqual(self.browser.focused().text, "Skip to the prompt")
        self.browser.press("Enter")
        order = []
        for _ in range(20):
            focused = self.browser.focused()
            name = focused.value("id")
            outline = self.browser.script("const e = document.activeElement, d = e.closest('.drop') || e; return getComputedStyle(d).outlineWidth")
            self.assertEqual(outline, "3px", name)
            self.assertTrue(focused.name or focused.text, name)
            order.append(name)
            if name == "submit":
                break
            self.browser.press("Tab")
        self.assertEqual(order, ["prompt", "first", "last", "ref-image", "ref-video", "ref-audio", "size", "num_frames", "preset", "num_inference_steps", "seed",
                                 "reroll", "audio", "submit"])
        self.browser.script("document.getElementById('prompt').focus()")
        self.choose("#num_inference_steps", "100")
        self.browser.press(*BALL)
        self.browser.press("Enter", hold=("Control",))
        self.in_denoise()
        for _ in range(40):
            if self.browser.focused().value("id") == "cancel":
                break
            self.browser.press("Tab")
        self.browser.press("Enter")
        self.until(lambda: self.status() == "cancelled", "cancelled")

    def test_structure_and_hints(self):
        self.find("#prompt").write("cat <Picture 2>")
        self.assertIn("<Picture 2>", self.until(lambda: self.find("#lint").text, "hints"))
        self.assertIn("<Picture 2>", self.description("#prompt"))
        self.find("#prompt").write("A cat says \"one two three four five six seven\" <|shout|>")
        hints = self.until(lambda: "<|shout|>" in self.find("#lint").text and self.find("#lint").text, "an unknown token")
        self.assertIn("known are <d>, </d>, <|cutoff|>", hints)
        self.assertIn("7 spoken words take about 2.8 s to say and the clip lasts 0.9 s", hints)
        counts = self.find("#counts").text
        self.assertRegex(counts, r"^\d+ tokens of 262144 \u00b7 about 2\.8 s of speech in 0\.9 s$")
        self.find("#first").type(PICTURE)
        self.until(lambda: int(self.find("#counts").text.split()[0]) > int(counts.split()[0]) + 16, "tokens of the keyframe")
        self.find(".drop[data-slot=first] .remove").click()
        self.find("#prompt").write("A cat sleeps by the fire.")
        self.until(lambda: "shout" not in self.find("#lint").text, "no more hints of that")
        self.find("#skeleton").click()
        self.assertIn("[Shot 1] A cat sleeps by the fire.", self.find("#prompt").value("value"))
        before = self.find("#seed").value("value")
        self.find("#reroll").click()
        self.assertNotEqual(self.find("#seed").value("value"), before)
        estimate = self.until(lambda: "MiB of memory" in self.find("#estimate").text and self.find("#estimate").text, "estimate")
        self.assertRegex(estimate, r"128x128 .* 8 evaluations .* about \d+ s of work .* \d+ MiB of memory")

    def test_a_late_estimate_does_not_replace_a_newer_one(self):
        self.hold_estimates()
        self.find("#prompt").write(BALL)
        self.until(lambda: self.browser.script("return window.answers") == 1, "the first question")
        self.choose("#num_inference_steps", "3")
        self.until(lambda: " 3 evaluations" in self.find("#estimate").text, "the newer estimate")
        self.let_go()
        self.assertIn(" 3 evaluations", self.find("#estimate").text)

    def test_a_late_estimate_does_not_hide_why_a_clip_was_refused(self):
        self.find("#first").type(os.path.abspath(__file__))  # not a picture; the estimate takes a stand-in for it
        self.until(lambda: "cannot be shown" in self.find(".drop[data-slot=first]").text, "hint")
        self.hold_estimates()
        self.find("#prompt").write(BALL)
        self.find("#submit").click()
        self.until(lambda: self.find("#error").shown, "error")
        self.let_go()
        self.assertIn("input_reference", self.find("#error").text)

    def test_the_later_of_two_clicks_fills_the_form(self):
        with open(PICTURE, "rb") as file:
            picture = base64.b64encode(file.read()).decode()
        for fields in ({"prompt": "with a picture", "input_reference": picture, "seed": 1}, {"prompt": "words alone", "seed": 2}):
            self.server.finished(self.server.submit(**fields))
        self.until(lambda: len(self.browser.all("#history li")) == 2, "history")
        self.browser.script("""
            const real = window.fetch;
            const gate = new Promise((done) => { window.letGo = done; });
            window.fetch = async (path, ...more) => {
              const answer = await real(path, ...more);
              if (!String(path).includes('/inputs/')) return answer;
              await gate;
              setTimeout(() => { window.read = 1; }, 200);
              return answer;
            };""")
        self.find("[aria-label='Again with: with a picture']").click()
        self.find("[aria-label='Again with: words alone']").click()
        self.until(lambda: self.find("#prompt").value("value") == "words alone", "inputs")
        self.browser.script("window.letGo()")
        self.until(lambda: self.browser.script("return window.read"), "the picture of the first")
        self.assertEqual((self.find("#prompt").value("value"), self.find("#seed").value("value")), ("words alone", "2"))
        self.assertFalse(self.find(".drop[data-slot=first] canvas").shown)

    def test_phone(self):
        self.browser.width(360, 740)
        self.submit(num_inference_steps="2")
        self.completed()
        self.until(lambda: self.browser.all("#history li"), "history")
        self.assertLessEqual(self.browser.script("return document.scrollingElement.scrollWidth"), 360)
        small = self.browser.script("""return [...document.querySelectorAll('button, a.button, select, input:not([type=file])')]
            .filter((e) => e.checkVisibility()).map((e) => [e.id || e.textContent, e.getBoundingClientRect()])
            .filter(([, r]) => r.width < (r.height > 24 ? 24 : 18) || r.height < 18 || r.right > 360).map(([n]) => n)""")
        self.assertEqual(small, [])
        self.browser.script("document.getElementById('result').scrollIntoView()")
        self.picture("page-phone")

    def test_dark_and_light(self):
        self.submit(num_inference_steps="2")
        self.completed()
        self.find("#submit").click()
        self.choose("#num_inference_steps", "5000")  # so that an error is on the page too
        self.until(lambda: self.find("#error").shown, "error")
        grounds = []
        for dark in (False, True):
            self.browser.scheme(dark)
            seen, bad = self.browser.script(CONTRAST)
            self.assertGreater(seen, 30)
            self.assertEqual(bad, [], "dark" if dark else "light")
            grounds.append(self.browser.script("return getComputedStyle(document.body).backgroundColor"))
        self.assertNotEqual(*grounds)
        self.find("#theme").click()  # against the system's choice, and it stays
        self.assertEqual(self.browser.script("return getComputedStyle(document.body).backgroundColor"), grounds[0])
        self.browser.refresh()
        self.loaded()
        self.assertEqual(self.browser.script("return getComputedStyle(document.body).backgroundColor"), grounds[0])
        self.assertEqual(self.browser.script(CONTRAST)[1], [])

    def test_everything_has_a_name(self):
        self.find("#first").type(PICTURE)
        self.submit(num_inference_steps="2")
        self.completed()
        self.assertEqual(self.browser.script(NAMELESS), [])
        ids = self.browser.script("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
        self.assertEqual(len(ids), len(set(ids)))
        self.assertEqual(self.find("#first").name, "First frame as the model will see it kf_first.png, 128x128")

    def test_pictures(self):
        """The page of the README: a finished clip, one that runs, one that waits."""
        if not PICTURES:
            self.skipTest("H3_TEST_PICTURES is not set")
        self.submit()
        self.completed()
        shown = self.jobs()[0]["id"]
        running = self.server.submit(**{"prompt": "A green star moves left with a low tone.", "size": "128x128", "num_frames": 22, "steps": 40})
        self.server.submit(prompt="A blue square moves right on a grey background.", size="128x128", num_frames=22, steps=8)
        self.server.in_stage(running, "denoise")
        self.browser.script("location.hash = arguments[0]", shown)
        self.browser.script("const p = document.getElementById('player'); p.controls = false; p.currentTime = 0.3")
        for name, dark in (("page", False), ("page-dark", True)):
            self.browser.scheme(dark)
            self.browser.width(1280, 980)
            self.until(lambda: self.browser.texts("#queue span") and "running" in self.browser.texts("#queue span")[0] and self.browser.script(
                "const p = document.getElementById('player'); return p.readyState >= 2 && !p.seeking"), "the clip and the queue")
            self.picture(name)


class WithKey(BrowserTest):
    flags = ("--api-key", "secret")

    def headers(self):
        return {"Authorization": "Bearer secret"}

    def setUp(self):
        self.browser.width(1280)
        self.open(wait=False)

    def test_key_is_asked_for(self):
        self.until(lambda: self.find("#key-dialog").shown, "question")
        self.find("#key").type("wrong")
        self.browser.press("Enter")
        self.until(lambda: self.find("#key-dialog").shown and not self.find("#key").value("value"), "question again")
        self.find("#key").type("secret")
        self.browser.press("Enter")
        self.loaded()
        self.submit(num_inference_steps="2")
        self.completed()
        self.until(lambda: self.browser.script("return document.getElementById('player').videoWidth") == 128, "player")


if __name__ == "__main__":
    main()
