"""test_ab.py - ab and --dump: two configurations on the same tokens, from outside.

Not here: faults that it must find (tests/fault), the report's looks (test_ab_html.py).
SPDX-License-Identifier: MIT
"""
import os
import subprocess
import sys
import unittest

from cli_case import CLI, MODEL, SOURCE, TEXT, ZOO, CliCase, main, read, run

sys.path.insert(0, os.path.join(SOURCE, "scripts", "lib"))
import gguf_edit  # noqa: E402

ZOOS = ("v2lite", "v2-group", "v3", "v3-512", "glm5-512", "glm47flash", "glm5", "glm52-shared", "v32")
IDS = ",".join(str((i * 37 + 11) % 250 + 1) for i in range(40))
F32 = ("-s", "kv.dtype=f32")


def zoo(name):
    return os.path.join(ZOO, f"zoo-{name}.gguf")


class Ab(CliCase):
    def ab(self, model, *args, rc=0, ids=IDS):
        r = run("ab", "-m", model, *(("--ids", ids) if ids else ()), "--json", *args)
        self.assertEqual(r.rc, rc, r)
        j = r.json()
        self.assertIs(j["verdict"]["pass"], rc == 0)
        return j

    def test_ref_against_ref_is_zero_everywhere(self):
        for name in ZOOS:
            for mode in ("shadow", "free"):
                j = self.ab(zoo(name), "--mode", mode, "-n", "3")
                self.assertEqual(j["mode"], mode)
                self.assertIsNone(j["first_difference"], name)
                self.assertEqual(len(j["logits"]["by_position"]), 43)
                for k in ("max_abs", "mean_abs", "kl", "kl_ba"):
                    self.assertEqual(j["logits"][k], 0, (name, k))
                self.assertEqual(j["logits"]["topk_overlap"], 1)
                self.assertGreater(len(j["ops"]), 20)
                for o in j["ops"]:
                    self.assertEqual((o["max_abs"], o["norm_rel"], o["flips"], o["status"]), (0, 0, [], "ok"), o)

    def test_precisions_pass_with_the_error_they_have(self):
        units = {"bf16": 2.0 ** -9, "f16": 2.0 ** -12}
        for name in ("v2lite", "glm5", "v32"):
            for dtype, unit in units.items():
                a = ("--a", "kv.dtype=f32", "--b", f"kv.dtype={dtype}")
                j = self.ab(zoo(name), *a, "-n", "3")
                self.assertEqual(j["verdict"]["thresholds"]["precision"], dtype)
                bad = [o for o in j["ops"] if o["max_abs"] > 0]
                self.assertTrue(bad)
                for o in bad:
                    # Only what touches the cache differs, by about a rounding of its numbers.
                    self.assertTrue(o["slot"].startswith("mla."), o)
                    self.assertLess(o["norm_rel"], 2 * unit, o)
                    self.assertGreater(o["norm_rel"], unit / 16, o)
                j = self.ab(zoo(name), *a, "-n", "3", "--mode", "free")
                self.assertGreater(j["logits"]["max_abs"], 0)
                self.assertEqual(j["first_difference"]["layer"], 0)
                self.assertIn(j["first_difference"]["status"], ("ok", "flip"))
            for mode in ("shadow", "free"):
                j = self.ab(zoo(name), "--mode", mode, "--b", "plugin.ref.round=bf16")
                self.assertGreater(sum(o["max_abs"] > 0 for o in j["ops"]), 20)

    def test_without_a_baseline_rounding_is_a_difference(self):
        j = self.ab(zoo("v3"), *F32, "--b", "plugin.ref.round=bf16", "--baseline", "none", rc=1)
        self.assertEqual(j["first_difference"]["status"], "fail")
        self.assertIn("of B (ref)", j["first_difference"]["text"])

    def test_chunks_and_batches(self):
        for name in ("v2lite", "glm5"):
            for b in ("chunk=1", "batch=3", "chunk=7 batch=2"):
                j = self.ab(zoo(name), *F32, "--b", b)
                self.assertEqual(j["mode"], "free")
                self.assertEqual(j["logits"]["max_abs"], 0, (name, b))
                self.assertIsNone(j["first_difference"])
            self.assertEqual(j["b"]["settings"], {"chunk": "7", "batch": "2"})
            # The same batch on both sides: each op gets all its rows, and ref joins late.
            both = ("-n", "3", "-s", "kv.block=16", "--a", "batch=3 kv.dtype=f32 chunk=9", "--b")
            j = self.ab(zoo(name), *both, "batch=3 kv.dtype=f32 chunk=9")
            self.assertEqual((j["mode"], j["first_difference"]), ("shadow", None))
            j = self.ab(zoo(name), *both, "batch=3 chunk=9 plugin.ref.round=bf16")
            self.assertGreater(sum(o["baseline_max_abs"] > 0 for o in j["ops"]), 20)

    def test_golden_files(self):
        for name in ("v2lite", "v3", "glm5", "glm52-shared"):
            golden = ("--golden", os.path.join(ZOO, f"zoo-{name}.golden.gguf"))
            for dtype in ("f32", "bf16"):
                j = self.ab(zoo(name), *golden, "-s", f"kv.dtype={dtype}", ids=None)
                self.assertGreater(j["logits"]["max_abs"], 0)
                self.assertEqual(j["b"]["model"], golden[1])
        path = os.path.join(self.tmp, "rounded.gguf")
        self.good("run", "-m", zoo("v3"), "-p", "abcdefghijkl", "-n", "1", *F32, "-s", "plugin.ref.round=bf16", "--dump",
                  "embd,blk.*.out,output_norm", "--dump-to", path)
        self.ab(zoo("v3"), "--golden", path, *F32, rc=1, ids=None)
        self.ab(zoo("v3"), "--golden", path, *F32, "--baseline", "bf16", ids=None)

    def test_thresholds_gate(self):
        args = ("--mode", "free", "--b", "plugin.ref.round=bf16")
        kl = self.ab(zoo("v3"), *args)["logits"]
        self.assertGreater(kl["kl"], 0)
        self.ab(zoo("v3"), *args, "--max-kl", str(kl["kl"] * 1.01), "--max-abs", str(kl["max_abs"] * 1.01))
        self.ab(zoo("v3"), *args, "--max-kl", str(kl["kl"] * 0.99), rc=1)
        self.ab(zoo("v3"), *args, "--max-abs", str(kl["max_abs"] * 0.99), rc=1)

    def test_model_files_differ(self):
        q8 = os.path.join(self.tmp, "q8.gguf")
        self.good("quantize", zoo("v3"), q8, "Q8_0")
        j = self.ab(zoo("v3"), "--model-b", q8, *F32, rc=1)
        self.assertEqual((j["first_difference"]["op"], j["b"]["model"]), ("embed", q8))
        self.assertIn(("quant", "fail"), {(o["slot"], o["status"]) for o in j["ops"]})
        j = self.ab(zoo("v3"), "--model-b", q8, *F32, "--mode", "free", "--max-kl", "0.1")
        self.assertGreater(j["logits"]["kl"], 0)

    def test_times_and_costs(self):
        j = self.ab(MODEL, "-n", "4")
        for o in j["ops"]:
            for side in ("time_a_us", "time_b_us"):
                self.assertLessEqual(o[side]["lo"], o[side]["median"])
                self.assertLessEqual(o[side]["median"], o[side]["hi"])
            self.assertGreater(o["bytes"], 0)
            if o["slot"] == "quant":
                self.assertGreater(o["flops"], 0)
        by = {(o["slot"], o["op"]): o for o in j["timing"]["by_op"]}
        self.assertGreater(by["quant", "matmul"]["a_us"], 0)
        # Of a table for the whole context only the rows of the tokens are read.
        for o in j["ops"]:
            if (o["slot"], o["op"]) == ("dense", "rope"):
                self.assertLess(o["bytes"], 100e3, o["tap"])
        self.assertGreater(j["timing"]["a_s"], 0)
        self.assertGreater(j["memory"]["a"]["cache"], 0)

    @unittest.skipIf(os.environ.get("BP_SANITIZED"), "a sanitizer's own memory and time are counted too")
    def test_two_sides_cost_less_than_four_runs_and_the_memory_of_two(self):
        text = read(TEXT)[:740].decode("utf-8", "ignore")
        ids = self.good_json("tokenize", "-m", MODEL, "-p", text)["ids"]
        self.assertGreater(len(ids), 190)

        def cost(*args):
            best = None
            for _ in range(2):  # processor time: other work delays a run, but is not counted
                child = subprocess.Popen([CLI, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                _, status, used = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(status)
                self.assertEqual(child.returncode, 0, args)
                seconds = used.ru_utime + used.ru_stime
                best = min(best, (seconds, used.ru_maxrss)) if best else (seconds, used.ru_maxrss)
            return best

        one = cost("run", "-m", MODEL, "-p", text, "-n", "1")
        for b in ("kv.dtype=f32", "plugin.ref.round=bf16", "kv.dtype=f32 plugin.ref.round=bf16"):
            two = cost("ab", "-m", MODEL, "-p", text, "--b", b)
            self.assertLess(two[0], 4 * one[0], (b, two, one))
            self.assertLess(two[1], 2 * one[1], (b, two, one))

    def test_activations(self):
        j = self.ab(zoo("v3"), "--a", "engine.act=bf16", "-n", "3")  # B follows
        self.assertEqual([j[s]["backends"]["act"]["dtype"] for s in "ab"], ["bf16", "bf16"])
        self.assertEqual((j["logits"]["max_abs"], j["verdict"]["thresholds"]["precision"]), (0, "bf16"))
        j = self.ab(zoo("v3"), "--a", "engine.act=bf16", "-n", "3", "--mode", "free")
        self.assertEqual([j[s]["backends"]["act"]["dtype"] for s in "ab"], ["bf16", "f32"])
        self.assertGreater(j["logits"]["max_abs"], 1e-3)
        self.refused("ab", "-m", zoo("v3"), "--ids", IDS, "--json", "--b", "engine.act=bf16",
                     says=("A's activations are f32 and B's bf16", "--mode free"))

    def test_table(self):
        r = run("ab", "-m", zoo("v3"), "--ids", IDS, "--b", "kv.dtype=f32")
        self.assertEqual(r.rc, 0, r)
        text = r.out.decode()
        self.assertTrue(r.err.startswith(b"side A: cache "), r)
        self.assertIn(b"(one layer at a time)", r.err.splitlines()[1], r)
        self.assertIn(b"\nside B: cache ", r.err)
        self.assertIn("blk.0.attn.cache", text)
        # One call a layer is no measurement of a ratio, and free mode measures none.
        self.assertRegex(text, r"(?m)^mla\.prefill\.run +\d+ +[\d.]+ +[\d.]+ +- ")
        self.assertIn("fewer than 5 times", text)
        free = self.good("ab", "-m", zoo("v3"), "--ids", IDS, "--b", "kv.dtype=f32", "--mode", "free").out.decode()
        self.assertRegex(free, r"(?m)^blk\..* +- +-$")
        self.assertIn("\nfirst difference: mla.common.cache_write", text)
        self.assertIn("\nPASS: ", text)

    def test_report(self):
        page = os.path.join(self.tmp, "ab.html")
        self.ab(zoo("v3"), "--html", page)
        with open(page, encoding="utf-8") as f:
            self.assertIn("</html>", f.read())

    def test_refusals(self):
        v3 = ("ab", "-m", zoo("v3"), "--ids", "1,2,3")
        for args, says in (
                (("--mode", "half"), "shadow or free"),
                (("--baseline", "f64"), "auto, none, bf16 or f16"),
                (("--b", "chunk=0"), "from 1 to 65536"),
                (("--b", "kv.dtypo=f32"), "did you mean dtype"),
                (("--b", "chunk=2", "--mode", "shadow"), "--mode free"),
                (("--b", "engine.ctx=32"), "engine.ctx"),
                (("-p", "x"), "one place only"),
                (("--dump", "blk.0.nowhere"), "no tap matches"),
                (("--golden", os.path.join(ZOO, "zoo-v3.golden.gguf")), "one place only")):
            r = run(*v3, *args)
            self.assertEqual((r.rc, r.out), (2, b""), r)
            self.assertIn(says.encode(), r.err.splitlines()[-1], r)
        self.refused("ab", "-m", zoo("v3"), "--ids", "1,x", says=("x",))
        self.refused("ab", "-m", zoo("v3"), "--ids", "1,999", says=("263",))
        r = run("ab", "-m", zoo("v3"), "--model-b", zoo("glm5"), "--ids", "1,2")
        self.assertEqual((r.rc, r.out), (2, b""), r)
        self.assertIn(b"--mode free", r.err, r)


class Dump(CliCase):
    NAMES = "embd,blk.*.out,output_norm,blk.2.moe.ids"

    def test_a_run_is_a_golden_file(self):
        path = os.path.join(self.tmp, "run.gguf")
        for model in (MODEL, zoo("v3")):
            self.good("run", "-m", model, "-p", "1 2 3 4", "-n", "6", "--temp", "0", "--dump", self.NAMES, "--dump-to",
                      path)
            j = self.good_json("verify", "-m", model, "--golden", path)
            self.assertEqual((j["pass"], j["max_abs"]), (True, 0))
            self.assertGreater(len(j["prompts"][0]["hidden_max_abs"]), 2)
            self.assertEqual(j["greedy_match"], j["greedy_total"])
            self.assertGreater(j["greedy_total"], 0)
            self.good_json("ab", "-m", model, "--golden", path)

    def test_taps_lie_in_the_file(self):
        path = os.path.join(self.tmp, "ab.gguf")
        self.good("ab", "-m", zoo("v3"), "--ids", IDS, "-n", "2", "--dump", self.NAMES, "--dump-to", path)
        names = {t["name"]: t for t in self.good_json("inspect", path, "--tensors")["tensors"]}
        self.assertIn("0.tap.blk.2.moe.ids", names)
        self.assertIn("0.tap.blk.2.moe.ids.pos", names)
        self.assertIn("0.hidden.0", names)
        j = self.good_json("verify", "-m", zoo("v3"), "--golden", path, "--max-abs", "0.01")
        self.assertIs(j["pass"], True)

    def test_some_taps_only(self):
        path = os.path.join(self.tmp, "some.gguf")
        self.good("run", "-m", zoo("v3"), "-p", "abc", "-n", "1", "--dump", "blk.2.attn.kv", "--dump-to", path)
        j = self.good_json("verify", "-m", zoo("v3"), "--golden", path)
        self.assertEqual(j["prompts"][0]["hidden_max_abs"], [])

    def test_outputs_do_not_replace_what_is_read(self):
        model = self.file("M.gguf", read(zoo("v3")))
        before = read(model)
        hard, soft = os.path.join(self.tmp, "hard.gguf"), os.path.join(self.tmp, "soft.gguf")
        os.link(model, hard)
        os.symlink(model, soft)
        text = self.file("text", b"abc")
        ab = ("ab", "-m", model, "--ids", "1,2")
        for out in (model, hard, soft):
            self.refused(*ab, "--html", out, says="--html")
            self.refused(*ab, "--dump", "embd", "--dump-to", out, says="--dump-to")
            self.refused("run", "-m", model, "-p", "a", "-n", "1", "--dump", "embd", "--dump-to", out, says="--dump-to")
        self.refused("ab", "-m", zoo("v3"), "--model-b", model, "--ids", "1,2", "--html", model, says="to be read")
        self.refused("run", "-m", model, "-f", text, "-n", "1", "--dump", "embd", "--dump-to", text, says="to be read")
        self.assertEqual((read(model), read(text)), (before, b"abc"))

    def test_every_shard_is_read(self):
        model = gguf_edit.read(zoo("v3"))
        half = len(model.tensors) // 2
        shards = gguf_edit.write_shards(os.path.join(self.tmp, "S"), model, [model.tensors[:half], model.tensors[half:]])
        before = [read(s) for s in shards]
        for out in shards:
            self.refused("ab", "-m", shards[0], "--ids", "1,2", "--html", out, says="to be read")
        self.assertEqual([read(s) for s in shards], before)

    def test_dump_wants_taps_that_exist(self):
        path = os.path.join(self.tmp, "d.gguf")
        for names in ("", "nosuch", "embd,", "embd,blk.9.out"):
            for mode in ("shadow", "free"):
                self.refused_after_notes("ab", "-m", zoo("v3"), "--ids", "1,2", "--mode", mode, "--dump", names,
                                         "--dump-to", path)
            self.refused("run", "-m", zoo("v3"), "-p", "a", "-n", "1", "--dump", names, "--dump-to", path, says="no tap")
        self.assertFalse(os.path.exists(path))

    def refused_after_notes(self, *args):
        """What the sides will take is told first."""
        r = run(*args)
        self.assertEqual((r.rc, r.out), (2, b""), r)
        self.assertIn(b"no tap matches", r.err.splitlines()[-1], r)

    def test_nothing_to_compare_on(self):
        self.refused("ab", "-m", zoo("v3"), says=("standard input was empty", "--ids"))

    def test_outputs_need_a_place(self):
        ab = ("ab", "-m", zoo("v3"), "--ids", "1,2")
        none = os.path.join(self.tmp, "none", "x")
        self.refused(*ab, "--html", none, says="no folder")
        self.refused(*ab, "--dump", "embd", "--dump-to", none, says="no folder")
        self.refused(*ab, "--html", "", says="empty")
        self.refused(*ab, "--html", self.tmp, says="no ordinary file")
        path = os.path.join(self.tmp, "x")
        self.refused(*ab, "--html", path, "--dump", "embd", "--dump-to", os.path.join(self.tmp, ".", "x"), says="same file")
        self.assertFalse(os.path.exists(path))
        self.refused(*ab, "--a", "batch=65536", says=("--a", "batch=65536"))
        self.refused("quantize", zoo("v3"), "", "Q4_0", says="empty")

    def test_refusals(self):
        self.refused("run", "-m", zoo("v3"), "-p", "abc", "--dump", "blk.0.atn.kv", says=("attn.kv",))
        r = run("run", "-m", zoo("v3"), "-p", "abc", "-n", "1", "--dump", "embd", "--dump-to",
                os.path.join(self.tmp, "no", "folder.gguf"))
        self.assertEqual(r.rc, 2, r)
        self.assertIn(b"folder", r.err, r)


if __name__ == "__main__":
    main()
