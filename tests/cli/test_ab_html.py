"""test_ab_html.py - the report of `ab` as a file: well-formed, on its own, whole or not there, and deaf to what names say.

What a browser makes of it: test_ab_browser.py. SPDX-License-Identifier: MIT
"""
import base64
import hashlib
import html.parser
import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import unittest

import ab_samples

REPORT = os.environ["BP_AB_REPORT"]
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
# Elements and attributes that the page is made of; what hostile text would add is not among them.
ELEMENTS = set("html head meta title style body a main header p h1 h2 span b code bdi dl div dt dd small section ul li noscript details "
               "summary table caption thead tbody tr th td label input select option output blockquote script q".split())
ATTRIBUTES = set("lang charset http-equiv content name class href id role hidden aria-labelledby aria-hidden aria-live aria-label tabindex "
                 "type autocomplete placeholder value for scope data-i title".split())


class Reader(html.parser.HTMLParser):
    """Keeps a stack: every end tag closes the innermost open element."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.stack, self.faults, self.ids, self.raw, self.policy, self.hrefs, self.texts = [], [], [], {}, "", [], []
        self.counts = {}
        self.feed(text)
        self.close()
        if self.stack:
            self.faults.append(f"never closed: {self.stack}")

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in ELEMENTS:
            self.faults.append(f"element {tag}")
        for key, value in attrs:
            if key not in ATTRIBUTES:
                self.faults.append(f"attribute {key} of {tag}")
            if key == "id":
                self.ids.append(value)
            if key == "href":
                self.hrefs.append(value)
        if len({k for k, _ in attrs}) != len(attrs):
            self.faults.append(f"an attribute twice: {attrs}")
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"]
        if tag not in VOID:
            self.stack.append(tag)
            if tag in ("script", "style"):
                self.raw.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        if not self.stack or self.stack[-1] != tag:
            self.faults.append(f"</{tag}> at {self.getpos()} in {self.stack[-3:]}")
        else:
            self.stack.pop()

    def handle_data(self, data):
        if self.stack and self.stack[-1] in ("script", "style"):
            self.raw[self.stack[-1]][-1] += data
        else:
            self.texts.append(data)

    def handle_comment(self, data):
        self.faults.append(f"comment {data[:40]}")


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = folder.name

    def write(self, result, out="report.html", **kw):
        source = os.path.join(self.tmp, "result.json")
        with open(source, "w", encoding="utf-8") as f:
            json.dump(result, f)
        path = os.path.join(self.tmp, out)
        done = subprocess.run([REPORT, source, path], capture_output=True, check=False, timeout=120, **kw)
        return done, path

    def page(self, result):
        done, path = self.write(result)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(path, encoding="utf-8") as f:  # strict: the whole file is UTF-8
            return f.read()

    def each(self):
        return [(name, make(), self.page(make())) for name, make in ab_samples.ALL.items()]

    def test_well_formed(self):
        for name, _, text in self.each():
            reader = Reader(text)
            self.assertEqual(reader.faults, [], name)
            self.assertEqual(len(reader.ids), len(set(reader.ids)), name)
            self.assertTrue(text.startswith("<!DOCTYPE html>"))
            for tag, n in {"script": 2, "style": 1, "h1": 1, "title": 1, "main": 1}.items():
                self.assertEqual(reader.counts[tag], n, tag)
            self.assertIsNone(re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), name)

    def test_reader_finds_faults(self):
        for bad in ("<p><b>x</p></b>", "<p onclick=x>", "<img src=x>", "<div>", "<!-- x -->", "<p id=a id=b></p>"):
            self.assertTrue(Reader(bad).faults, bad)

    def test_asks_nobody(self):
        for name, _, text in self.each():
            reader = Reader(text)
            own = "".join(reader.raw["style"]) + reader.raw["script"][1]
            self.assertIsNone(re.search(r"https?://|url\s*\(|@import|\bfetch\b|XMLHttp|WebSocket|sendBeacon|innerHTML|eval\(", own), name)
            self.assertEqual(reader.hrefs, ["#main"], name)
            self.assertTrue(reader.policy.startswith("default-src 'none';"), reader.policy)
            self.assertNotIn("unsafe", reader.policy)
            for kind, raw in (("style", reader.raw["style"][0]), ("script", reader.raw["script"][1])):
                digest = base64.b64encode(hashlib.sha256(raw.encode()).digest()).decode()
                self.assertIn(f"{kind}-src 'sha256-{digest}'", reader.policy)

    def test_holds_the_numbers(self):
        for name, result, text in self.each():
            data = Reader(text).raw["script"][0]
            self.assertTrue(data.isascii())
            self.assertIsNone(re.search("[<>&]", data))
            self.assertEqual(json.loads(data), json.loads(json.dumps(result)), name)

    def test_hostile_text_is_text(self):
        text = self.page(ab_samples.hostile())
        reader = Reader(text)
        seen = "".join(reader.texts)
        for poison in ab_samples.POISON:
            if not any(ord(c) < 32 or 0x7f <= ord(c) < 0xa0 for c in poison):
                self.assertIn(poison, seen)
        for picture in "␀␁␛␡":
            self.assertIn(picture, seen)
        self.assertEqual(text.count("<script"), 2)

    def test_without_script(self):
        """Verdict, tables and both sides are there as plain HTML."""
        text = self.page(ab_samples.fail())
        seen = " ".join("".join(Reader(text).texts).split())
        for words in ("Different", "A and B first differ at", "mla.decode.run", "in layer 3", "4 of 109 ops", "max_kl", "not finite",
                      "blk.10.moe.router", "wider than the precision", "0.21", "attn_flash", "39.3 MiB",
                      "Top-10 overlap", "And for the comparison itself: 7 MiB", "Made here", "412 ×", "The plots need JavaScript"):
            self.assertIn(words, seen)
        self.assertEqual(len(re.findall(r"<tr[^>]* data-i=", text)), 109)
        self.assertEqual(text.count('<tr class="bad" data-i='), 4)
        self.assertEqual(text.count('<tr class="flipped" data-i='), 2)

    def test_inherited(self):
        text = self.page(ab_samples.free())
        self.assertEqual(text.count('<td><span class="st fail">'), 1)
        self.assertGreater(text.count('<td><span class="st inherited">'), 5)
        self.assertIn("what came before agrees", text)

    def test_pass_says_pass(self):
        for result, title in ((ab_samples.agree(), "PASS"), (ab_samples.zero(), "PASS"), (ab_samples.odd(), "DIFFERENT"),
                              (ab_samples.empty(), "DIFFERENT")):
            self.assertIn(f"<title>{title}", self.page(result))

    def test_whole_or_untouched(self):
        done, path = self.write(ab_samples.fail())
        self.assertEqual(done.returncode, 0)
        with open(path, "rb") as f:
            first = f.read()

        def no_room():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        done, _ = self.write(ab_samples.agree(), preexec_fn=no_room)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(b"report.html: the report could not be written: File too large", done.stderr)
        with open(path, "rb") as f:
            self.assertEqual(f.read(), first)
        self.assertEqual(sorted(os.listdir(self.tmp)), ["report.html", "result.json"])

    def test_no_place(self):
        os.mkdir(os.path.join(self.tmp, "folder"))
        for out, words in (("none/report.html", b"needs a folder"), ("folder", b"could not be written")):
            done, _ = self.write(ab_samples.empty(), out=out)
            self.assertEqual(done.returncode, 1, out)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stderr.count(b"\n"), 1)
        self.assertEqual(sorted(os.listdir(self.tmp)), ["folder", "result.json"])

    def test_not_an_object(self):
        done, path = self.write([1, 2])
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"not a JSON object", done.stderr)
        self.assertFalse(os.path.exists(path))

    def test_command(self):
        """The page of a real comparison holds what --json prints; a place that cannot be written to is one sentence."""
        model = os.path.join(os.environ["BP_SOURCE"], "models", "bp-tiny-glm-dsa-Q4_K_M.gguf")
        path = os.path.join(self.tmp, "real.html")
        command = [os.environ["BP_CLI"], "ab", "-m", model, "--b", "kv.dtype=bf16 plugin.ref.round=bf16", "-n", "2", "-p",
                   "</script><b>Once", "--json", "--html"]
        done = subprocess.run([*command, path], capture_output=True, check=False, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(path, encoding="utf-8") as f:
            reader = Reader(f.read())
        self.assertEqual(reader.faults, [])
        printed, held = json.loads(done.stdout), json.loads(reader.raw["script"][0])
        self.assertEqual({k: printed[k] for k in held}, held)
        self.assertEqual(held["prompt"]["text"], "</script><b>Once")
        self.assertGreater(len(held["ops"]), 40)
        done = subprocess.run([*command, os.path.join(self.tmp, "none", "x.html")], capture_output=True, check=False, timeout=300)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)
        self.assertIn(b"there is no folder", done.stderr)

    def test_mode_of_the_file(self):
        done, path = self.write(ab_samples.empty(), preexec_fn=lambda: os.umask(0o027))
        self.assertEqual(done.returncode, 0)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o640)


if __name__ == "__main__":
    unittest.main(verbosity=2)
