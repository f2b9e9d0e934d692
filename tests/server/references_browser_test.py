"""References on the page, in a real browser: zones, order, tags, errors, and the clip of the API."""
import base64

from browser import *
from browser_test import CONTRAST, NAMELESS, BrowserTest
from harness import *
from references_test import PROMPT, make_media, ppm, wav


class References(BrowserTest):
    env = {}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.media = os.path.join(cls.server.folder, "media")
        os.mkdir(cls.media)
        make_media(cls.media, cls.server)

    def file(self, name):
        return os.path.join(self.media, name)

    def give(self, kind, *names):
        self.find("#ref-" + kind).type("\n".join(self.file(name) for name in names))

    def rows(self):
        """The tags and the name of each reference."""
        return self.browser.script("""return [...document.querySelectorAll('#refs li')].map((row) =>
            [[...row.querySelectorAll('.tag')].map((tag) => tag.textContent).join(' '), row.querySelector('b').textContent])""")

    def press(self, label):
        self.find("#refs [aria-label='%s']" % label).click()

    def checked(self):
        self.until(lambda: self.browser.script(
            "return [...document.querySelectorAll('#refs .is')].every((is) => is.textContent.includes('->'))"), "the server's table")

    def small(self, seed="5"):
        self.choose("#num_inference_steps", "1")
        self.choose("#seed", seed)

    def test_four_pictures_a_clip_and_a_sound(self):
        self.give("image", "p0.ppm", "p1.ppm", "p2.ppm")
        self.give("video", "v.mp4")
        self.give("audio", "s.wav")
        self.give("image", "p3.ppm")
        self.assertEqual(self.rows(), [["<Picture 1>", "p0.ppm"], ["<Picture 2>", "p1.ppm"], ["<Picture 3>", "p2.ppm"],
                                       ["<Audio 1> <Video 1>", "v.mp4"], ["<Audio 2>", "s.wav"], ["<Picture 4>", "p3.ppm"]])
        self.find("#prompt").write(PROMPT)
        self.small()
        self.checked()
        self.find("#submit").click()
        self.completed(240)
        job = self.jobs()[0]
        self.assertEqual([r["name"] for r in job["references"]], ["p0.ppm", "p1.ppm", "p2.ppm", "v.mp4", "s.wav", "p3.ppm"])
        shown = self.find("#result-refs").text
        for line in ("<Picture 1> = p0.ppm (40x32 -> ", "<Audio 1> = sound of v.mp4 (", "<Video 1> = v.mp4 (", "<Picture 4> = p3.ppm"):
            self.assertIn(line, shown)
        clip = self.server.get(job["url"]).body
        # The same request through the API makes the same clip.
        fields = [("prompt", PROMPT), ("size", job["size"]), ("num_frames", job["num_frames"]), ("steps", 1), ("seed", 5),
                  ("audio", "true")]
        for kind, name in (("image", "p0.ppm"), ("image", "p1.ppm"), ("image", "p2.ppm"), ("video", "v.mp4"), ("audio", "s.wav"),
                           ("image", "p3.ppm")):
            with open(self.file(name), "rb") as file:
                fields.append(("ref_" + kind, (name, file.read(), "")))
        body, headers = multipart(fields)
        twin = self.server.finished(self.server.post("/v1/videos", body, headers=headers).json["id"], 240)
        self.assertTrue(self.server.get(twin["url"]).body == clip, "the page and the API differ")
        # The list is emptied, and the history fills it again.
        while self.rows():
            self.find("#refs .remove").click()
        self.find("#prompt").write("something else")
        self.until(lambda: self.browser.all("#history [aria-label^='Again']"), "history")
        self.find("#history [aria-label^='Again']").click()
        self.until(lambda: len(self.rows()) == 6, "references")
        self.assertEqual(self.rows()[3], ["<Audio 1> <Video 1>", "v.mp4"])
        self.checked()
        self.browser.script("document.getElementById('refs').scrollIntoView()")
        self.picture("page-references")
        self.find("#submit").click()
        self.until(lambda: len(self.jobs()) == 3 and all(j["status"] == "completed" for j in self.jobs()), "third clip", 240)
        self.assertEqual(len({self.server.get(j["url"]).body for j in self.jobs()}), 1)

    def test_order_and_tags(self):
        self.give("image", "p0.ppm", "p1.ppm")
        self.give("audio", "s.wav")
        self.press("Down: p0.ppm")
        self.assertEqual(self.rows(), [["<Picture 1>", "p1.ppm"], ["<Picture 2>", "p0.ppm"], ["<Audio 1>", "s.wav"]])
        self.assertEqual(self.browser.focused().name, "Down: p0.ppm")
        self.browser.press("Enter")  # the focus stays with what is moved
        self.assertEqual(self.rows()[2], ["<Picture 2>", "p0.ppm"])
        self.assertEqual(self.browser.focused().name, "Up: p0.ppm")
        self.press("Remove: p1.ppm")
        self.assertEqual(self.rows(), [["<Audio 1>", "s.wav"], ["<Picture 1>", "p0.ppm"]])
        self.find("#prompt").write("look at now")
        self.browser.script("document.getElementById('prompt').setSelectionRange(7, 7)")
        self.press("Insert <Picture 1>")
        self.assertEqual(self.find("#prompt").value("value"), "look at <Picture 1> now")
        self.assertEqual(self.browser.focused().value("id"), "prompt")
        hints = self.until(lambda: self.find("#refs-notes").text, "hints")
        self.assertIn("Say what <Audio 1> (s.wav) is for.", hints)
        self.assertNotIn("<Picture 1>", hints)
        self.find("#prompt").type(" <Video 2>")
        self.until(lambda: "<Video 2> names nothing" in self.find("#lint").text, "hint")

    def test_sound_of_a_clip(self):
        self.give("video", "v.mp4")
        self.give("audio", "s.wav")
        self.checked()
        self.assertEqual([tags for tags, _ in self.rows()], ["<Audio 1> <Video 1>", "<Audio 2>"])
        self.find("#refs input[type=checkbox]").click()
        self.assertEqual([tags for tags, _ in self.rows()], ["<Video 1>", "<Audio 1>"])
        self.assertEqual(self.browser.focused().value("type"), "checkbox")

    def test_errors_stand_beside_the_files(self):
        with open(self.file("wide.ppm"), "wb") as file:
            file.write(ppm(300, 30, (5, 6, 7)))
        self.give("image", "p0.ppm", "wide.ppm")
        error = self.until(lambda: self.find("#refs-error").shown and self.find("#refs-error").text, "error")
        self.assertIn("wide.ppm is 300x30, give a picture between 1:4 and 4:1", error)
        self.assertEqual(self.browser.script("return [...document.querySelectorAll('#refs li.bad b')].map((b) => b.textContent)"), ["wide.ppm"])
        self.assertFalse(self.find("#error").shown)
        self.press("Remove: wide.ppm")
        self.until(lambda: not self.find("#refs-error").shown, "the error goes when it is repaired")
        self.press("Remove: p0.ppm")
        wav(self.file("alone.wav"), 1)
        self.give("audio", "alone.wav")
        self.until(lambda: "cannot stand alone" in self.find("#refs-error").text, "error")
        self.assertEqual(self.jobs(), [])

    def count_estimates(self, slow_ms=0):
        """Counts what the page asks of /v1/videos/estimate from now on; each answer takes at least slow_ms."""
        self.browser.script("""
            const real = window.fetch, slow = arguments[0];
            window.estimates = 0;
            window.fetch = async (path, ...more) => {
              if (!String(path).endsWith('/estimate')) return real(path, ...more);
              ++window.estimates;
              const answer = await real(path, ...more);
              await new Promise((done) => setTimeout(done, slow));
              return answer;
            };""", slow_ms)

    def estimates(self):
        return self.browser.script("return window.estimates")

    def test_files_are_sent_once(self):
        self.count_estimates(slow_ms=2500)
        self.find("#prompt").write("<Picture 1>")
        self.give("image", "p0.ppm")
        self.until(lambda: self.estimates() == 1, "the first question")
        self.choose("#seed", "77")  # neither the seed nor words, nor asking again before the answer, send the file again
        time.sleep(0.8)
        self.find("#prompt").type(" turns")
        self.checked()
        time.sleep(1)
        self.assertEqual(self.estimates(), 1)
        self.choose("#ref_image_size", "max")
        self.until(lambda: self.estimates() == 2, "another size of pictures")

    def test_an_error_of_the_prompt_goes_with_it(self):
        self.find("#prompt").write("<|image_pad|>")
        self.give("image", "p0.ppm")
        self.until(lambda: "image_pad" in self.find("#error").text, "error")
        self.find("#prompt").write("<Picture 1>")
        self.until(lambda: not self.find("#error").shown, "the error goes when it is repaired")
        self.checked()

    def test_hints_follow_what_the_server_says_of_a_clip(self):
        job = self.server.finished(self.server.submit(num_frames=22, audio=False))
        with open(self.file("silent.mp4"), "wb") as file:
            file.write(self.server.get(job["url"]).body)
        self.find("#prompt").write("<Video 1> <Audio 1>")  # the page takes clips to have sound until it is told
        self.give("video", "silent.mp4")
        self.until(lambda: self.rows() == [["<Video 1>", "silent.mp4"]], "the server's table")
        self.until(lambda: "<Audio 1> names nothing" in self.find("#lint").text, "hint")

    def test_what_is_learnt_of_a_clip_does_not_hide_why_it_was_refused(self):
        job = self.server.finished(self.server.submit(num_frames=22, audio=False))
        with open(self.file("mute.mp4"), "wb") as file:
            file.write(self.server.get(job["url"]).body)
        self.hold_estimates()
        self.give("video", "mute.mp4")
        self.until(lambda: self.browser.script("return window.answers") == 1, "the first question")
        self.find("#submit").click()  # without a prompt, which the estimate does without
        self.until(lambda: self.find("#error").shown, "error")
        self.let_go()
        self.assertEqual(self.rows(), [["<Video 1>", "mute.mp4"]])
        self.browser.script("window.later = 0; setTimeout(() => { window.later = 1; }, 1500)")  # longer than the page waits before it asks
        self.until(lambda: self.browser.script("return window.later"), "a second")
        self.assertIn("prompt: it is empty", self.find("#error").text)
        self.assertEqual(self.browser.script("return window.answers"), 1)

    def test_files_that_were_exchanged_are_not_sent_on(self):
        self.browser.script("""
            const real = window.fetch;
            window.signals = [];
            window.fetch = async (path, options, ...more) => {
              if (!String(path).endsWith('/estimate')) return real(path, options, ...more);
              window.signals.push(options.signal);
              if (window.signals.length > 1) return real(path, options, ...more);
              return new Promise((done, failed) => options.signal.addEventListener('abort', () => failed(options.signal.reason)));
            };""")
        self.give("image", "p0.ppm")
        self.until(lambda: self.browser.script("return window.signals.length") == 1, "the first question")
        self.press("Remove: p0.ppm")
        self.give("image", "p1.ppm")
        self.checked()
        self.assertEqual(self.browser.script("return window.signals.map((signal) => signal && signal.aborted)")[0], True)
        self.until(lambda: "evaluations" in self.find("#estimate").text, "estimate")
        self.assertFalse(self.find("#error").shown)

    def test_again_keeps_how_references_are_used(self):
        with open(self.file("p0.ppm"), "rb") as file:
            picture = ("p0.ppm", file.read(), "")
        for size in ("official", "max"):
            fields = [("prompt", "<Picture 1> by " + size), ("size", "32x32"), ("num_frames", "5"), ("steps", "1"), ("strict", "true"), ("audio", "false"),
                      ("reference_resize_mode", size), ("ref_image", picture)]
            body, headers = multipart(fields)
            self.server.finished(self.server.post("/v1/videos", body, headers=headers).json["id"], 120)
        self.give("image", "p1.ppm")
        self.choose("#ref_image_size", "match")
        for size in ("official", "max"):
            again = "#history [aria-label='Again with: <Picture 1> by %s']" % size
            self.until(lambda: self.browser.all(again), "history")
            self.find(again).click()
            self.until(lambda: self.rows() == [["<Picture 1>", "p0.ppm"]] and self.find("#prompt").value("value").endswith(size), "inputs")
            self.assertEqual([self.find("#ref_image_size").value("value"), self.find("#strict").value("checked"), self.find("#audio").value("checked")],
                             [size, True, False])

    def test_dropped_files_go_where_they_belong(self):
        with open(self.file("s.wav"), "rb") as file:
            encoded = base64.b64encode(file.read()).decode()
        self.browser.script("""
            const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0)), data = new DataTransfer();
            data.items.add(new File([bytes], 'dropped.wav', {type: 'audio/wav'}));
            const zone = document.querySelector('.drop[data-kind=image]');
            for (const name of ['dragover', 'drop']) zone.dispatchEvent(new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true}));
            """, encoded)
        self.assertEqual(self.rows(), [["<Audio 1>", "dropped.wav"]])

    def test_narrow_dark_and_named(self):
        self.browser.width(360, 740)
        self.give("image", "p0.ppm")
        self.give("video", "v.mp4")
        self.give("audio", "s.wav")
        self.find("#prompt").write("<Video 3>")
        self.checked()
        self.assertLessEqual(self.browser.script("return document.scrollingElement.scrollWidth"), 360)
        small = self.browser.script("""return [...document.querySelectorAll('#refs-row button, #refs-row select, #refs-row input:not([type=file])')]
            .filter((e) => e.checkVisibility()).map((e) => [e.textContent || e.id, e.getBoundingClientRect()])
            .filter(([, r]) => r.width < (r.height > 24 ? 24 : 18) || r.height < 18 || r.right > 360).map(([n]) => n)""")
        self.assertEqual(small, [])
        for dark in (False, True):
            self.browser.scheme(dark)
            seen, bad = self.browser.script(CONTRAST)
            self.assertGreater(seen, 30)
            self.assertEqual(bad, [], "dark" if dark else "light")
        self.assertEqual(self.browser.script(NAMELESS), [])
        self.browser.script("document.getElementById('refs-row').scrollIntoView()")
        self.picture("page-references-phone")

    def test_keyboard(self):
        self.give("image", "p0.ppm", "p1.ppm")
        self.browser.script("document.getElementById('last').focus()")
        order = []
        for _ in range(16):
            self.browser.press("Tab")
            focused = self.browser.focused()
            outline = self.browser.script("const e = document.activeElement, d = e.closest('.drop') || e; return getComputedStyle(d).outlineWidth")
            self.assertEqual(outline, "3px")
            order.append(focused.value("id") or focused.name)
            if order[-1] == "size":
                break
        self.assertEqual(order, ["ref-image", "ref-video", "ref-audio", "Insert <Picture 1>", "Down: p0.ppm", "Remove: p0.ppm",
                                 "Insert <Picture 2>", "Up: p1.ppm", "Remove: p1.ppm", "ref_image_size", "strict", "size"])


if __name__ == "__main__":
    main()
