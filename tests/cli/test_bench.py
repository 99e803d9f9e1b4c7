"""test_bench.py - bench: rows and their fields, ceilings, ops one by one, models, a device, what is refused, Ctrl-C.

Speeds are not judged: that they are finite, positive and agree with one another is. SPDX-License-Identifier: MIT
"""
import math
import os
import shutil
import signal
import subprocess

from cli_case import BUILD, CLI, ZOO, CliCase, main, run

HOST = ("-s", "engine.device=cpu", "-s", "kv.dtype=bf16", "--seconds", "0.02", "--samples", "3")
OPS = {"quant.matmul", "quant.dequantize", "mla.common", "mla.decode", "mla.prefill", "mla.index", "moe.run", "moe.route",
       "dense.embed", "dense.rms", "dense.layernorm", "dense.silu_mul", "dense.add", "dense.rope", "dense.argmax", "dense.topk",
       "dense.matmul"}
FIELDS = {"op", "what", "provider", "us", "us_min", "us_max", "bytes", "flops", "gb_s", "tflop_s", "roof_pct", "roof", "samples",
          "calls", "graph", "cached", "note"}


class Bench(CliCase):
    def row(self, r, copy):
        """Numbers of a row are positive and belong together; NaN passes none of these."""
        self.assertEqual(set(r), FIELDS)
        self.assertIsNone(r["note"], r)
        self.assertTrue(r["us"] > 0.0 and math.isfinite(r["us"]), r)
        self.assertGreater(r["bytes"], 0)
        self.assertGreaterEqual(r["samples"], 1)
        self.assertGreaterEqual(r["calls"], 1)
        self.assertAlmostEqual(r["gb_s"] / (r["bytes"] / r["us"] / 1e3), 1.0, places=6)
        self.assertEqual(r["tflop_s"] > 0, r["flops"] > 0, r)
        self.assertIn(r["roof"], ("memory", "compute"))
        self.assertTrue(r["roof_pct"] > 0 and math.isfinite(r["roof_pct"]), r)
        if r["roof"] == "memory":
            self.assertAlmostEqual(r["roof_pct"] / (100.0 * r["gb_s"] / copy), 1.0, places=6)
        if r["us_min"] is not None:
            self.assertLessEqual(r["us_min"], r["us"])
            self.assertLessEqual(r["us"], r["us_max"])

    def rows(self, j):
        copy, matmul = (r for r in j["rows"] if r["op"].startswith("ceiling."))
        self.assertEqual((copy["op"], matmul["op"]), ("ceiling.copy", "ceiling.matmul"))
        self.assertEqual(j["ceilings"], {"copy_gb_s": copy["gb_s"], "matmul_tflop_s": matmul["tflop_s"]})
        for r in j["rows"]:
            self.row(r, copy["gb_s"])
        return [r for r in j["rows"] if not r["op"].startswith("ceiling.")]

    def test_every_op(self):
        j = self.good_json("bench", *HOST)
        rows = self.rows(j)
        self.assertEqual({r["op"] for r in rows}, OPS)
        self.assertEqual({r["provider"] for r in rows}, {"ref"})
        self.assertEqual((j["device"]["kind"], {r["graph"] for r in rows}), ("host", {False}))
        whats = [(r["op"], r["what"]) for r in rows]
        self.assertEqual(len(whats), len(set(whats)))
        eight = [r for r in rows if "8 columns" in r["what"]]
        self.assertGreaterEqual(len(eight), 9)
        for r in eight:  # eight columns: the same weights, eight times the operations
            one, = (x for x in rows if x["what"] == r["what"].replace("8 columns", "1 column"))
            self.assertEqual(r["flops"], 8 * one["flops"])
            self.assertLess(r["bytes"], 8 * one["bytes"])
        q4, = (r for r in rows if r["what"] == "Q4_K 96x512, 1 column")
        self.assertEqual((q4["bytes"], q4["flops"]), (96 * 512 // 256 * 144 + 4 * (96 + 512), 2 * 96 * 512))

    def test_one_op(self):
        for op, want in (("mla.decode", {"mla.decode"}), ("mla", {"mla.common", "mla.decode", "mla.prefill", "mla.index"}),
                         ("dense.add", {"dense.add"})):
            rows = self.rows(self.good_json("bench", "--op", op, *HOST))
            self.assertEqual({r["op"] for r in rows}, want)
        rows = self.rows(self.good_json("bench", "--op", "quant.matmul", "--only", "Q6_K", *HOST))
        self.assertEqual([r["what"] for r in rows], ["Q6_K 96x512, 1 column", "Q6_K 96x512, 8 columns"])

    def test_table(self):
        r = self.good("bench", "--op", "moe.run", *HOST)
        lines = r.out.decode().splitlines()
        self.assertEqual(lines[1].split()[:3], ["op", "provider", "us"])
        self.assertIn("moe.run", lines)
        self.assertEqual(sum("tiny Q4_K" in line and " ref " in line for line in lines), 2, r)

    def test_what_nobody_serves_is_a_row_with_the_reason(self):
        r = run("bench", "--json", "--op", "mla.decode", *HOST, "-s", "slots.mla.common=none_of_these")
        self.assertEqual(r.rc, 1, r)  # not one row has numbers
        j = r.json()
        self.assertTrue(all("none_of_these" in r["note"] and r["us"] is None for r in j["rows"] if r["op"] == "mla.decode"), j)

    def test_a_file(self):
        model = os.path.join(ZOO, "zoo-glm5.gguf")
        j = self.good_json("bench", "-m", model, "--prefill", "40", "-n", "4", "--seqs", "2", *HOST)
        by_op = {r["op"]: r for r in j["rows"]}
        self.assertEqual(set(by_op), {"ceiling.copy", "ceiling.matmul", "model.prefill", "model.decode", "model.layers",
                                      "model.head"})
        for op in ("model.prefill", "model.decode", "model.layers"):
            self.row(by_op[op], j["ceilings"]["copy_gb_s"])
        self.assertAlmostEqual(j["model"]["prefill_tok_s"], 40e6 / by_op["model.prefill"]["us"], places=3)
        self.assertAlmostEqual(j["model"]["decode_tok_s"], 2e6 / by_op["model.decode"]["us"], places=3)
        self.assertEqual((j["model"]["prefill"], j["model"]["seqs"]), (40, 2))
        # Experts that no token chose are not counted, nor is the embedding table; a head is.
        size = os.path.getsize(model)
        self.assertLess(by_op["model.layers"]["bytes"], by_op["model.decode"]["bytes"])
        self.assertLess(by_op["model.decode"]["bytes"], size)
        self.assertIn("quant", {s["slot"] for s in j["backends"]["slots"]})

    def test_a_shape(self):
        j = self.good_json("bench", "--shape", "tiny", "--layers", "3", "--prefill", "16", "-n", "8", *HOST)
        ops = [r["op"] for r in j["rows"]]
        self.assertEqual(ops, ["ceiling.copy", "ceiling.matmul", "model.prefill", "model.decode", "model.layers", "model.head",
                               "layer.decode", "layer.prefill", "layer.decode", "layer.prefill"])
        for r in j["rows"][2:5]:
            self.row(r, j["ceilings"]["copy_gb_s"])
        self.assertEqual(j["estimate"]["layers"], 6)
        for us in (j["estimate"]["decode_us"], j["estimate"]["prefill_us"]):  # None: below what the clock tells
            self.assertTrue(us is None or us > 0, j)
        dense, moe = (r for r in j["rows"] if r["op"] == "layer.decode")
        self.assertTrue(dense["bytes"] > 0 and moe["bytes"] > dense["bytes"] / 4, j)
        text = self.good("bench", "--shape", "tiny", "--layers", "3", "--prefill", "16", "-n", "8", *HOST).out
        self.assertIn(b"estimate for all 6 layers of tiny", text)

    def fake(self):
        """A device whose memory the host cannot touch, and whose work waits: from the tests of the kit."""
        folder = os.path.realpath(self.tmp)
        for name in ("backplane-fake.so", "libcuda.so.1"):
            path = os.path.join(BUILD, "tests", "check", "plugins", name)
            if not os.path.exists(path):
                self.skipTest("the fake device was not built")
            shutil.copyfile(path, os.path.join(folder, name))
            os.chmod(os.path.join(folder, name), 0o644)
        return ("-s", "engine.device=cuda:0", "-s", f"engine.plugin_path={folder}", "--sizes", "small",
                "--seconds", "0.02", "--samples", "3")

    def test_a_device(self):
        fake = self.fake()
        j = self.good_json("bench", *fake)
        rows = self.rows(j)
        self.assertEqual({r["op"] for r in rows}, OPS)
        self.assertEqual({r["provider"] for r in rows}, {"fake"})
        self.assertEqual(j["device"]["kind"], "cuda")
        self.assertIn(True, {r["graph"] for r in rows})
        j = self.good_json("bench", "--shape", "tiny", "--layers", "3", "--prefill", "16", "-n", "4", *fake)
        self.assertEqual({s["provider"] for s in j["backends"]["slots"] if s["slot"] == "quant"}, {"fake"})

    def test_refused(self):
        self.refused("bench", "--op", "nothing", *HOST, says=("'nothing'", "quant.matmul"), code="E_ARG")
        self.refused("bench", "--sizes", "huge", *HOST, says="'huge'", code="E_ARG")
        self.refused("bench", "--shape", "gpt", *HOST, says=("'gpt'", "glm-5"), code="E_ARG")
        self.refused("bench", "--shape", "tiny", "--type", "Q9", *HOST, says="'Q9'", code="E_ARG")
        self.refused("bench", "--shape", "tiny", "--layers", "2", *HOST, says="--layers", code="E_ARG")
        self.refused("bench", "--shape", "tiny", "-m", "x.gguf", *HOST, says="both", code="E_ARG")
        self.refused("bench", "--shape", "tiny", "--op", "moe", *HOST, says="without a model", code="E_ARG")
        self.refused("bench", "-m", self.tmp + "/none.gguf", *HOST, says="none.gguf", code="E_IO")
        self.refused("bench", "--shape", "tiny", "--prefill", "64", *HOST, "-s", "engine.ctx=32", says="engine.ctx is 32",
                     code="E_ARG")
        self.refused("bench", "-s", "engine.device=cuda:7", says="device", code="E_CONFIG")

    def test_ctrl_c(self):
        p = subprocess.Popen([CLI, "bench", "-s", "engine.device=cpu", "--samples", "300", "--seconds", "600"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertTrue(p.stdout.readline())  # written when the ceilings are known
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=60)
        self.assertEqual(p.returncode, 3, err)
        self.assertIn(b"stopped on request", err)


if __name__ == "__main__":
    main()
