"""test_measure.py - verify and ppl.

SPDX-License-Identifier: MIT
"""
import math
import os
import struct

import tiny_gguf
from cli_case import MODEL, SOURCE, TEXT, ZOO, ZOO_V3, ZOO_V3_GOLDEN, CliCase, main, read, run

F32 = ("-s", "kv.dtype=f32")
VOCAB, WIDTH, LAYERS = 264, 64, 4


class Verify(CliCase):
    def test_passes_in_every_mode(self):
        for model in ("zoo-v3", "zoo-glm5", "zoo-v2lite"):
            for mode in ("whole", "chunk:1", "chunk:7", "step"):
                j = self.good_json("verify", "-m", f"{ZOO}/{model}.gguf", "--golden", f"{ZOO}/{model}.golden.gguf",
                                   "--mode", mode, *F32)
                self.assertIs(j["pass"], True)
                self.assertLessEqual(j["max_abs"], 5e-4)
                self.assertEqual((j["greedy_match"], j["greedy_total"]), (16, 16))
                for p in j["prompts"]:
                    self.assertEqual(p["top1_agree"], 1.0)
                    self.assertEqual(p["flips"], [])
                    self.assertLess(p["max_kl"], 1e-8)
                    self.assertGreater(max(p["hidden_max_abs"]), 0)
                    steps = {"whole": 1, "chunk:1": p["tokens"], "chunk:7": -(-p["tokens"] // 7), "step": p["tokens"]}
                    self.assertEqual(p["steps"], steps[mode])

    def test_long_prompt_with_few_rows(self):
        """640 tokens, 32 rows of logits, no hidden states: the golden of the BF16 file against the Q4_K_M one."""
        golden = os.path.join(SOURCE, "tests/data/golden/bp-tiny-glm-dsa.long.golden.gguf")
        r = run("verify", "-m", MODEL, "--golden", golden, "--json", "--gap", "1", "--kl", "0.2")
        self.assertEqual(r.rc, 0, r)
        j = r.json()
        self.assertEqual((j["prompts"][0]["tokens"], j["prompts"][0]["rows"]), (640, 32))
        self.assertEqual(j["prompts"][0]["hidden_max_abs"], [])
        self.assertGreater(j["mean_kl"], 1e-4)

    def test_a_limit_can_be_missed(self):
        args = ("verify", "-m", ZOO_V3, "--golden", ZOO_V3_GOLDEN, *F32)
        r = run(*args, "--max-abs", "1e-9", "--json")
        self.assertEqual(r.rc, 1, r)
        self.assertIs(r.json()["pass"], False)
        text = run(*args, "--max-abs", "1e-9")
        self.assertEqual((text.rc, text.out.splitlines()[-1]), (1, b"FAIL"))
        self.assertEqual(run(*args, "--kl", "1e-30").rc, 1)
        self.assertEqual(run(*args).out.splitlines()[-1], b"PASS")

    def test_text(self):
        r = self.good("verify", "-m", ZOO_V3, "--golden", ZOO_V3_GOLDEN, *F32)
        self.assertEqual(r.err, b"backends: ref in all slots\n")
        self.assertEqual(len([x for x in r.out.splitlines() if x.startswith(b"prompt ")]), 2)

    # ---- damaged golden values ----

    def damaged(self, tensor, offset, raw, *extra):
        data = bytearray(read(ZOO_V3_GOLDEN))
        at = tiny_gguf.Reader(bytes(data)).tensors[tensor][2] + offset
        data[at:at + len(raw)] = raw
        path = self.file("damaged.gguf", bytes(data))
        return run("verify", "-m", ZOO_V3, "--golden", path, "--json", *F32, *extra)

    def value(self, tensor, index):
        r = tiny_gguf.read(ZOO_V3_GOLDEN)
        return struct.unpack_from("<f", r.data, r.tensors[tensor][2] + 4 * index)[0]

    def test_one_wrong_logit(self):
        index = 5 * VOCAB + 17
        r = self.damaged("1.logits", 4 * index, struct.pack("<f", self.value("1.logits", index) - 0.25))
        self.assertEqual(r.rc, 1, r)
        j = r.json()
        self.assertAlmostEqual(j["max_abs"], 0.25, delta=1e-3)
        self.assertLess(j["prompts"][0]["max_abs"], 5e-4)

    def test_one_wrong_hidden_value_of_any_level(self):
        for level in range(LAYERS + 1):
            index = 47 * WIDTH + 3
            r = self.damaged(f"0.hidden.{level}", 4 * index,
                             struct.pack("<f", self.value(f"0.hidden.{level}", index) + 0.5))
            self.assertEqual(r.rc, 1, r)
            hidden = r.json()["prompts"][0]["hidden_max_abs"]
            self.assertEqual([i for i, v in enumerate(hidden) if v > 0.4], [level])

    def test_nan_and_infinity_never_pass(self):
        for tensor in ("0.logits", "1.hidden.2"):
            for bad in (math.nan, math.inf, -math.inf):
                for extra in ((), ("--max-abs", "1e30"), ("--gap", "1e30")):
                    r = self.damaged(tensor, 4 * 999, struct.pack("<f", bad), *extra)
                    self.assertEqual(r.rc, 1, (tensor, bad, extra, str(r)))
                    self.assertIs(r.json()["pass"], False)
                    self.assertIsNone(r.json()["max_abs"])

    def test_wrong_greedy_token(self):
        r = self.damaged("0.greedy", 4 * 3, struct.pack("<i", 1))
        self.assertEqual(r.rc, 1, r)
        p = r.json()["prompts"][0]
        self.assertEqual((p["greedy_match"], p["greedy_total"]), (3, 8))
        self.assertGreater(p["greedy_gap"], 0)
        self.assertEqual(self.damaged("0.greedy", 12, struct.pack("<i", 1), "--gap", str(p["greedy_gap"] + 1e-6)).rc, 0)
        self.assertEqual(self.damaged("0.greedy", 12, struct.pack("<i", 1), "--gap", str(p["greedy_gap"] * 0.9)).rc, 1)

    def test_a_flip_is_shown_and_judged_by_its_gap(self):
        """A golden row whose best token is raised by just enough elsewhere."""
        row = [self.value("0.logits", 10 * VOCAB + i) for i in range(VOCAB)]
        best, other = row.index(max(row)), 7
        self.assertNotEqual(best, other)
        args = ("0.logits", 4 * (10 * VOCAB + other), struct.pack("<f", row[best] + 0.125))
        j = self.damaged(*args).json()
        self.assertEqual(j["prompts"][0]["flips"], [{"row": 10, "gap": 0.125, "golden_id": other, "our_id": best}])
        self.assertAlmostEqual(j["max_flip_gap"], 0.125, delta=1e-5)
        self.assertEqual(self.damaged(*args, "--gap", "0.13").rc, 0)
        self.assertEqual(self.damaged(*args, "--gap", "0.12").rc, 1)
        self.assertEqual(self.damaged(*args, "--gap", "0.13", "--max-abs", "5e-4").rc, 1)
        self.assertEqual(self.damaged(*args, "--gap", "0.13", "--kl", "1e-9").rc, 1)

    def test_kl_is_that_of_the_definition(self):
        """Golden logits made here: the divergence from what `run` reports must be the one computed here."""
        base = [self.value("0.logits", i) for i in range(VOCAB)]  # equal to ours within 2e-5
        other = [v + 0.5 * math.sin(i) for i, v in enumerate(base)]

        def probs(v):
            e = [math.exp(x - max(v)) for x in v]
            return [x / sum(e) for x in e]
        want = sum(p * math.log(p / q) for p, q in zip(probs(other), probs(base)))
        j = self.damaged("0.logits", 0, struct.pack(f"<{VOCAB}f", *other)).json()
        self.assertAlmostEqual(j["prompts"][0]["max_kl"], want, delta=1e-4 * want)
        self.assertAlmostEqual(j["mean_kl"], want / 117, delta=1e-4 * want)

    # ---- golden files that are not what they should be ----

    def golden(self, *, skip=(), change=None, kv=None):
        """A good one-prompt golden of zeros, less `skip`, with some tensors replaced."""
        n = 3
        tensors = {"0.ids": ([n], tiny_gguf.I32, struct.pack("<3i", 1, 2, 3)),
                   "0.logits": ([VOCAB, n], tiny_gguf.F32, bytes(4 * VOCAB * n)),
                   "0.greedy": ([2], tiny_gguf.I32, struct.pack("<2i", 5, 6))}
        for level in range(LAYERS + 1):
            tensors[f"0.hidden.{level}"] = ([WIDTH, n], tiny_gguf.F32, bytes(4 * WIDTH * n))
        tensors.update(change or {})
        keys = {"general.architecture": "golden", "golden.count": 1, "golden.0.text": "t"}
        keys.update(kv or {})
        keys = {k: v for k, v in keys.items() if k not in skip}
        return self.file("g.gguf", tiny_gguf.write(keys, [(k, *v) for k, v in tensors.items() if k not in skip]))

    def refuse(self, says, **kw):
        self.refused("verify", "-m", ZOO_V3, "--golden", self.golden(**kw), says=says, code="E_FORMAT")

    def test_hostile_golden_files(self):
        r = run("verify", "-m", ZOO_V3, "--golden", self.golden(), "--json")
        self.assertEqual(r.rc, 1, r)  # well-formed, but zeros are not what the model says
        f32, i32 = tiny_gguf.F32, tiny_gguf.I32
        self.refuse("golden.count", skip=["golden.count"])
        self.refuse("golden.count", kv={"golden.count": 0})
        self.refuse("golden.count", kv={"golden.count": 5000})
        self.refuse("golden.count", kv={"golden.count": "one"})
        self.refuse("'1.ids' is missing", kv={"golden.count": 2})
        self.refuse("'0.ids' is missing", skip=["0.ids"])
        self.refuse("'0.logits' is missing", skip=["0.logits"])
        self.refuse("hidden.3", skip=["0.hidden.3"])
        self.refuse("hidden.5", change={"0.hidden.5": ([WIDTH, 3], f32, bytes(4 * WIDTH * 3))})
        self.refuse("type F32; it must be I32", change={"0.ids": ([3], f32, bytes(12))})
        self.refuse("it must be F32", change={"0.logits": ([VOCAB, 3], i32, bytes(4 * VOCAB * 3))})
        self.refuse("another model", change={"0.logits": ([VOCAB - 1, 3], f32, bytes(4 * (VOCAB - 1) * 3))})
        self.refuse("4 rows", change={"0.logits": ([VOCAB, 4], f32, bytes(4 * VOCAB * 4))})
        self.refuse("another model", change={"0.hidden.1": ([WIDTH + 1, 3], f32, bytes(4 * (WIDTH + 1) * 3))})
        self.refuse("2 rows", change={"0.hidden.1": ([WIDTH, 2], f32, bytes(4 * WIDTH * 2))})
        self.refuse("dimensions", change={"0.ids": ([3, 2], i32, bytes(24))})
        for bad in (-1, VOCAB, 2 ** 31 - 1):
            self.refuse(f"the id {bad} at place 1", change={"0.ids": ([3], i32, struct.pack("<3i", 1, bad, 3))})
            self.refuse(f"the id {bad} at place 0", change={"0.greedy": ([1], i32, struct.pack("<i", bad))})
        self.refused("verify", "-m", ZOO_V3, "--golden", MODEL, says="not 'golden'", code="E_FORMAT")
        self.refused("verify", "-m", MODEL, "--golden", ZOO_V3_GOLDEN, says="another model", code="E_FORMAT")
        self.refused("verify", "-m", ZOO_V3, "--golden", self.tmp + "/none", code="E_IO")
        self.refused("verify", "-m", ZOO_V3, "--golden", self.file("cut", read(ZOO_V3_GOLDEN)[:5000]), code="E_FORMAT")

    def test_says_who_computed(self):
        r = self.good("verify", "-m", ZOO_V3, "--golden", ZOO_V3_GOLDEN, *F32)
        self.assertEqual(r.err, b"backends: ref in all slots\n")
        r = self.good("verify", "-m", ZOO_V3, "--golden", ZOO_V3_GOLDEN, *F32, "-v")
        self.assertNotIn(b"backends: ", r.err)  # said slot by slot
        r = self.good("verify", "-m", ZOO_V3, "--golden", ZOO_V3_GOLDEN, *F32, "--json")
        self.assertEqual(r.err, b"")

    def test_context_of_the_user_is_respected(self):
        self.refused("verify", "-m", ZOO_V3, "--golden", ZOO_V3_GOLDEN, "-s", "engine.ctx=30", says="30",
                     code="E_LIMIT")
        j = self.good_json("verify", "-m", ZOO_V3, "--golden", ZOO_V3_GOLDEN, "-s", "engine.batch_tokens=16", *F32)
        self.assertEqual([p["steps"] for p in j["prompts"]], [3, 5])


class Perplexity(CliCase):
    def naive(self, ids, size, chunks):
        """From the definition, by feeding prompts of every length to `run` and reading log-probabilities."""
        total, total2, n = 0.0, 0.0, 0
        for k in range(chunks):
            chunk = ids[k * size:(k + 1) * size]
            for j in range(size // 2, size - 1):
                nll = -self.logprob(chunk[:j + 1], chunk[j + 1])
                total, total2, n = total + nll, total2 + nll * nll, n + 1
        mean = total / n
        return math.exp(mean), math.sqrt((total2 / n - mean * mean) / (n - 1)) * math.exp(mean), n

    def logprob(self, prompt, token):
        text = bytes(prompt)  # the zoo's vocabulary is bytes
        j = self.good_json("run", "-m", ZOO_V3, "-n", "1", "--temp", "0", "--logprobs", "264", *F32,
                           stdin=text + b"\n")
        self.assertEqual(j["prompt_ids"], list(prompt))
        return next(t["logprob"] for t in j["tokens"][0]["top"] if t["id"] == token)

    def test_is_the_naive_one(self):
        text = b"It was a dark night; the king said: no!"
        j = self.good_json("ppl", "-m", ZOO_V3, "-p", text, "-C", "9", *F32)
        ids = self.good_json("tokenize", "-m", ZOO_V3, "-p", text)["ids"]
        self.assertEqual(ids, list(text))
        ppl, stderr, n = self.naive(ids, 9, len(ids) // 9)
        self.assertEqual((j["tokens"], j["chunks"], j["text_tokens"]), (n, len(ids) // 9, len(ids)))
        self.assertEqual(j["tokens"], j["chunks"] * (9 - 4 - 1))
        self.assertAlmostEqual(j["ppl"], ppl, delta=1e-4 * ppl)
        self.assertAlmostEqual(j["stderr"], stderr, delta=1e-3 * stderr)

    def test_options(self):
        a = self.good_json("ppl", "-m", MODEL, "-f", TEXT, "-C", "128", "--chunks", "3")
        self.assertEqual((a["chunks"], a["tokens"], a["chunk_tokens"]), (3, 3 * 63, 128))
        self.assertTrue(5 < a["ppl"] < 100, a)
        self.assertGreater(a["stderr"], 0)
        b = self.good_json("ppl", "-m", MODEL, "-f", TEXT, "-C", "128", "--chunks", "3", "-s", "engine.batch_tokens=40")
        self.assertEqual((a["ppl"], a["stderr"]), (b["ppl"], b["stderr"]))
        r = self.good("ppl", "-m", MODEL, "-f", TEXT, "-C", "128", "--chunks", "1", "-v")
        self.assertTrue(r.out.startswith(b"perplexity "), r)
        self.assertIn(b"chunk 1 of 1", r.err)

    def test_refusals(self):
        self.refused("ppl", "-m", MODEL, "-p", "too short", says=("less than one chunk of 512", "-C"), code="E_ARG")
        self.refused("ppl", "-m", MODEL, "-p", "x", "-C", "3", says="-C, --chunk")
        self.refused("ppl", "-m", MODEL, "-f", TEXT, "-C", "128", "-s", "engine.ctx=64", says="engine.ctx",
                     code="E_ARG")


if __name__ == "__main__":
    main()
