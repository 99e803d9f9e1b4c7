"""test_ab_browser.py - the report of `ab` in a real browser: it draws without a complaint and without asking anybody, in light
and dark, narrow and wide, by pointer and by keyboard, on paper and without its program.

Skipped where there is no Chromium. BP_SHOTS=folder keeps pictures. SPDX-License-Identifier: MIT
"""
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import ab_samples
import browser

REPORT = os.environ["BP_AB_REPORT"]

# Every visible text with the colour under it: [contrast, text], the worst ones first.
CONTRAST = """(() => {
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const under = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3] > 0 && c[3] < 1) throw new Error('a half-transparent ground');
      if (c[3] === 1) return c;
    }
    throw new Error('no ground');
  };
  const out = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let t = walk.nextNode(); t; t = walk.nextNode()) {
    const e = t.parentElement;
    if (!t.data.trim() || e.closest('script') || !e.checkVisibility()) continue;
    const style = getComputedStyle(e), ink = light(parse(e.closest('svg') ? style.fill : style.color)), ground = light(under(e));
    out.push([(Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05), t.data.trim().slice(0, 40)]);
  }
  return out.sort((p, q) => p[0] - q[0]);
})()"""
# Contrast of each mark with the cell under it, the worst.
MARKS = """(() => {
  const light = (c) => c.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  return Math.min(...[...document.querySelectorAll('.mk, .dot')].map((m) => {
    const style = getComputedStyle(m), p = light(m.matches('.mk') ? style.stroke : style.fill);
    const q = light(getComputedStyle(m.parentElement.querySelector('rect')).fill);
    return (Math.max(p, q) + 0.05) / (Math.min(p, q) + 0.05);
  }));
})()"""
FILL = "[...Array(8).keys()].map((i) => getComputedStyle(document.querySelector('.c' + i)).fill)"


def luminance(rgb):
    parts = [int(v) / 255 for v in re.findall(r"\d+", rgb)[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


class InBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.browser = browser.Browser(browser.find())
        cls.addClassCleanup(cls.browser.close)
        cls.results, cls.paths = {}, {}
        for name, make in ab_samples.ALL.items():
            cls.results[name] = make()
            source = os.path.join(cls.folder.name, name + ".json")
            cls.paths[name] = os.path.join(cls.folder.name, name + ".html")
            with open(source, "w", encoding="utf-8") as f:
                json.dump(cls.results[name], f)
            subprocess.run([REPORT, source, cls.paths[name]], check=True, timeout=120)

    def open(self, name, **kw):
        return browser.Page(self.browser, self.paths[name], **kw)

    def keep(self, page, name):
        if os.environ.get("BP_SHOTS"):
            with open(os.path.join(os.environ["BP_SHOTS"], name + ".png"), "wb") as f:
                f.write(page.screenshot())

    def calm(self, page, name):
        self.assertEqual(page.run("document.documentElement.dataset.state"), "drawn", name)
        self.assertTrue(page.run("document.getElementById('trouble').hidden"), name)
        self.assertEqual(page.complaints(), [], name)
        self.assertEqual(page.requests(), [page.url], name)
        self.assertIsNone(page.run("window.owned"), name)

    def count(self, page, selector):
        return page.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    def test_draws_in_all_sizes(self):
        for name in ab_samples.ALL:
            for width, dark in ((400, False), (1600, True)):
                with self.open(name, width=width, dark=dark) as page:
                    self.calm(page, (name, width))
                    self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width, (name, width))
                    if name in ("fail", "free", "agree", "deep"):
                        self.keep(page, f"{name}-{width}-{'dark' if dark else 'light'}")

    def test_marks(self):
        """As many cells, points and bars as the result has."""
        for name in ("fail", "agree", "free", "zero", "deep"):
            result = self.results[name]
            ops, rows = result["ops"], result["logits"]["by_position"]
            with self.open(name) as page:
                self.assertEqual(self.count(page, ".cell"), len(ops))
                bad = [op for op in ops if op["status"] == "fail"]
                here = [op for op in bad if op["made_here"]]
                self.assertEqual(self.count(page, "#heat-scroll .mk"), len(here), name)
                self.assertEqual(self.count(page, "#heat-scroll .dot"), sum(op["status"] == "flip" for op in ops), name)
                self.assertEqual(self.count(page, ".cell .first"), 0 if result["first_difference"] is None else 1, name)
                self.assertEqual(self.count(page, "#heat-scroll :is(.c4, .c5, .c6, .c7)"), len(bad), name)
                differ = sum(r["a_id"] != r["b_id"] for r in rows)
                self.assertEqual(self.count(page, "#kl-plot .hit"), differ, name)
                self.assertEqual(self.count(page, "#kl-plot .here"), 1 if differ else 0, name)
                self.assertEqual(self.count(page, "#kl-plot .nan"), sum(r["kl"] is None for r in rows), name)
                points = page.run("document.querySelector('#kl-plot .curve').getAttribute('d').match(/[ML]/g).length")
                if len(rows) <= 600:
                    self.assertEqual(points, sum(r["kl"] is not None for r in rows), name)
                else:
                    self.assertGreater(points, 300, name)
                timed = {op["slot"] + "." + op["op"] for op in ops if "time_a_us" in op}
                self.assertEqual(self.count(page, "#time-plot .bar-a"), len(timed), name)
                self.assertEqual(self.count(page, "#time-plot .bar-b"), len(timed), name)
                self.assertEqual(self.count(page, "#time-plot .whisker"), 2 * len(timed), name)
                self.assertEqual(page.run("document.getElementById('time').hidden"), not timed, name)

    def test_shades(self):
        with self.open("fail") as page:
            shade = {(op["slot"], op["op"], op["layer"]): i for i, op in enumerate(self.results["fail"]["ops"])}
            for place, want in ((("mla.decode", "run", 3), "c6"), (("mla.decode", "run", 7), "c5"), (("mla.decode", "run", 9), "c7"),
                                (("moe", "route", 10), "c4")):
                self.assertEqual(page.run(f"document.querySelector('.cell[data-i=\"{shade[place]}\"] rect').getAttribute('class')"), want)
            self.assertEqual(page.run("document.getElementById('kl-first').textContent"), "first other token: 14")

    def test_claims_of_speed(self):
        """Only where intervals are apart; a median of one call has none."""
        claims = "[...document.querySelectorAll('#time-plot .pair-of-bars')].map((g) => g.querySelectorAll('text')[1].textContent)"
        with self.open("fail") as page:
            said = page.run(claims)
            self.assertIn("B is 2.44 × faster", [s.replace("\u00a0", " ") for s in said])
            self.assertEqual(said.count("no clear difference"), 2)
        with self.open("single") as page:
            self.assertEqual(set(page.run(claims)), {"too few calls to tell"})
            self.assertIn("too few calls to tell", page.run("document.querySelector('.tiles').innerText"))

    def test_real(self):
        model = os.path.join(os.environ["BP_SOURCE"], "models", "bp-tiny-glm-dsa-Q4_K_M.gguf")
        path = os.path.join(self.folder.name, "real.html")
        for more in (["--b", "kv.dtype=bf16 plugin.ref.round=bf16", "-n", "4"], ["--b", "plugin.ref.round=bf16", "--mode", "free"]):
            done = subprocess.run([os.environ["BP_CLI"], "ab", "-m", model, "-p", "Once upon a time", "--html", path, "--json", *more],
                                  capture_output=True, check=False, timeout=300)
            self.assertIn(done.returncode, (0, 1), done.stderr)
            result = json.loads(done.stdout)
            with browser.Page(self.browser, path, width=400) as page:
                self.calm(page, more)
                self.assertEqual(self.count(page, ".cell"), len(result["ops"]))
                self.assertEqual(self.count(page, "#ops-table tbody tr"), len(result["ops"]))
                self.assertLessEqual(page.run("document.documentElement.scrollWidth"), 400)
                self.assertGreaterEqual(page.run(CONTRAST)[0][0], 4.5)

    def test_nothing_to_draw(self):
        with self.open("empty") as page:
            self.calm(page, "empty")
            for node in ("where", "time"):
                self.assertTrue(page.run(f"document.getElementById('{node}').hidden"))
            self.assertIn("No ops were compared", page.run("document.body.innerText"))

    def test_light_and_dark(self):
        fills = {}
        for dark in (False, True):
            with self.open("fail", dark=dark) as page:
                ground = luminance(page.run("getComputedStyle(document.body).backgroundColor"))
                (self.assertLess if dark else self.assertGreater)(ground, 0.1 if dark else 0.8)
                # Details open, a note shown: their texts count too.
                page.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
                page.run("document.querySelector('.cell').focus()")
                texts = page.run(CONTRAST)
                self.assertGreater(len(texts), 500)
                self.assertGreaterEqual(texts[0][0], 4.5, texts[:5])
                self.assertGreaterEqual(page.run(MARKS), 3)
                fills[dark] = page.run(FILL)
                # The further from right, the further from the ground, on both halves: grey copies keep the order.
                steps = [abs(luminance(c) - ground) for c in fills[dark]]
                self.assertEqual(steps[:4], sorted(steps[:4]), steps)
                self.assertEqual(steps[4:], sorted(steps[4:]), steps)
                # Blue within the bound, red beyond it: apart for every kind of colour vision.
                for i, c in enumerate(fills[dark][1:7], 1):
                    r, _, b = [int(v) for v in re.findall(r"\d+", c)[:3]]
                    (self.assertLess if i < 4 else self.assertGreater)(r, b, c)
                self.calm(page, dark)
        self.assertTrue(all(p != q for p, q in zip(fills[False], fills[True])), fills)

    def test_pointer_and_pin(self):
        with self.open("fail") as page:
            self.assertIn("mla.decode.run, layer 3", page.run("document.getElementById('heat-detail').innerText"))
            x, y = page.run("(() => { const c = document.querySelector('.cell[data-i=\"1\"]'); c.scrollIntoView({block: 'center'});"
                            " const b = c.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()")
            page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
            self.assertIn("dense.rms, layer 0", page.run("document.getElementById('tip').innerText"))
            for kind in ("mousePressed", "mouseReleased"):
                page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
            self.assertIn("dense.rms, layer 0", page.run("document.getElementById('heat-detail').innerText"))
            self.assertEqual(self.count(page, ".pinned"), 1)
            page.run("document.querySelector('#heat-detail button').click()")
            self.assertEqual(page.run("document.querySelector('tr.here-row').dataset.i"), "1")

    def test_keyboard(self):
        with self.open("fail") as page:
            reached = set()
            for _ in range(60):
                page.key("Tab")
                reached.add(page.run("(() => { const e = document.activeElement; return e.id || e.getAttribute('class') || e.tagName; })()"))
            for node in ("cell pinned", "ops-find", "ops-status", "scroll tall"):
                self.assertIn(node, reached)
            page.run("document.querySelector('.cell.pinned').focus()")
            page.key("ArrowRight")
            self.assertIn("mla.decode.run, layer 4", page.run("document.activeElement.getAttribute('aria-label')"))
            page.key("ArrowUp")
            page.key("Enter", "\r")
            self.assertIn("mla.common.cache_write, layer 4", page.run("document.getElementById('heat-detail').innerText"))
            page.run("document.querySelector('#kl-plot svg').focus()")
            page.key("End")
            page.key("ArrowLeft")
            self.assertIn("Position 22, KL not finite", page.run("document.getElementById('kl-detail').textContent"))
            page.key("Home")
            self.assertIn("Position 0, KL", page.run("document.getElementById('kl-detail').textContent"))
            self.calm(page, "keyboard")

    def test_sort_and_filter(self):
        with self.open("fail") as page:
            order = "[...document.querySelectorAll('#ops-table tbody tr')].filter((r) => !r.hidden).map((r) => Number(r.dataset.i))"
            ops = self.results["fail"]["ops"]
            self.assertEqual(page.run(order), list(range(len(ops))))
            click = "document.querySelectorAll('#ops-table thead button')[{}].click()"
            page.run(click.format(7))
            ratios = [ops[i] for i in page.run(order)]
            self.assertEqual([op["layer"] for op in ratios[:3]], [9, 3, 7])  # not finite, 412, 14
            self.assertEqual(page.run("document.querySelector('[aria-sort]').textContent"), "Ratio")
            page.run(click.format(7))
            self.assertEqual(page.run("document.querySelector('[aria-sort]').getAttribute('aria-sort')"), "ascending")
            self.assertEqual(ops[page.run(order)[-1]]["layer"], 9)
            page.run(click.format(14))
            times = [ops[i]["time_b_us"]["median"] for i in page.run(order)]
            self.assertEqual(times, sorted(times, reverse=True))
            page.run("(() => { const f = document.getElementById('ops-find'); f.value = 'mla decode';"
                     " f.dispatchEvent(new Event('input')); })()")
            self.assertEqual(len(page.run(order)), 12)
            page.run("(() => { const s = document.getElementById('ops-status'); s.value = 'fail';"
                     " s.dispatchEvent(new Event('change')); })()")
            self.assertEqual(len(page.run(order)), 3)
            self.assertEqual(page.run("document.getElementById('ops-count').textContent"), "3 of 109 shown")

    def test_hostile(self):
        """Not even the policy has anything to refuse; text stays text in what the program draws."""
        with self.open("hostile") as page:
            page.run("document.querySelectorAll('.cell').forEach((c) => c.dispatchEvent(new MouseEvent('click')))")
            self.calm(page, "hostile")
            self.assertEqual(self.count(page, "img, iframe, base, object, embed, link, [onload], [onerror], [onfocus], [style*=red]"), 0)
            self.assertEqual(self.count(page, "script"), 2)

    def test_policy_bites(self):
        """What would happen to markup that came through anyway."""
        with open(self.paths["fail"], encoding="utf-8") as f:
            text = f.read()
        path = os.path.join(self.folder.name, "bitten.html")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace("<main", "<script>window.owned=1</script><img src=x onerror=window.owned=1><main", 1))
        with browser.Page(self.browser, path) as page:
            self.assertIsNone(page.run("window.owned"))
            self.assertGreaterEqual(len(page.complaints()), 2)
            self.assertEqual([p.get("blockedReason") for p in page.seen("Network.loadingFailed")], ["csp"])

    def test_without_program(self):
        with self.open("fail", script=False) as page:
            text = page.run("document.body.innerText")
            for words in ("A and B first differ at", "The plots need JavaScript", "blk.3.attn.out", "wider than the precision"):
                self.assertIn(words, text)
            self.assertIsNone(page.run("document.documentElement.dataset.state || null"))
            self.assertTrue(page.run("document.getElementById('ops-controls').hidden"))

    def test_paper(self):
        with self.open("fail", dark=True) as page:
            data = base64.b64decode(page.call("Page.printToPDF", printBackground=True)["data"])
            self.assertTrue(data.startswith(b"%PDF-"))
            pages = len(re.findall(rb"/Type\s*/Page\b", data))
            self.assertTrue(2 <= pages <= 14, pages)
        with self.open("fail", dark=True, media="print", width=720) as page:
            self.assertGreater(luminance(page.run("getComputedStyle(document.body).backgroundColor")), 0.95)
            self.assertEqual(page.run("getComputedStyle(document.getElementById('ops-controls')).display"), "none")
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), 720)
            self.assertGreaterEqual(page.run(CONTRAST)[0][0], 4.5)
            self.assertGreaterEqual(page.run(MARKS), 3)


if __name__ == "__main__":
    if browser.find() is None:
        print("SKIP: no Chromium is installed (Debian package chromium; BP_BROWSER names another program)")
        sys.exit(77)
    unittest.main(verbosity=2)
