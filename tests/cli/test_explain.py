"""test_explain.py - backplane explain: what was chosen, from the headers alone, and what it says when a slot is left over.

SPDX-License-Identifier: MIT
"""
import os
import re
import unittest

from cli_case import MODEL, SOURCE, ZOO, ZOO_V3, CliCase, read, run

SLOTS = {"device", "dense", "quant", "mla.common", "mla.prefill", "mla.decode", "mla.index", "moe", "coll"}


def profile(name):
    return os.path.join(SOURCE, "etc", "profiles", name + ".ini")


class Explain(CliCase):
    def test_json(self):
        r = run("explain", "--json", "-m", MODEL)
        self.assertEqual(r.rc, 0, r)
        j = r.json()
        self.assertEqual(set(j), {"slots", "kv", "device", "act", "plugins"})
        self.assertEqual({s["slot"] for s in j["slots"]}, SLOTS)
        for s in j["slots"]:
            self.assertEqual(s["chosen"], "ref", s)
            self.assertIn(s["chosen"], [c["name"] for c in s["candidates"]])
            self.assertEqual(s["layers"] is None, s["slot"] in ("device", "coll") or s["what"] in ("embed, rms", "Q6_K"), s)
            self.assertIsNone(s["weight_bytes"], "nothing was prepared")
            self.assertFalse(s["on_host"])
            for c in s["candidates"]:
                self.assertIn(c["verdict"], ("yes", "no", "degraded", "not asked"))
        self.assertEqual((j["kv"]["dtype"], j["kv"]["asked"]), ("bf16", "auto"))
        self.assertEqual(j["kv"]["groups"][0]["token_bytes"], 2 * 576)
        self.assertEqual(j["device"]["kind"], "host")
        self.assertEqual([p["name"] for p in j["plugins"]], ["ref"])

    def test_table(self):
        r = run("explain", "-m", MODEL)
        self.assertEqual((r.rc, r.err), (0, b""), r)
        for slot in SLOTS:
            self.assertRegex(r.out.decode(), rf"(?m)^{re.escape(slot)} +[-0-9]+ +ref +chosen ", slot)
        self.assertIn(b"kv.dtype     bf16 (asked for: auto)", r.out)

    def test_same_as_run(self):
        for extra in ([], ["-s", "kv.dtype=f32"], ["-s", "engine.batch_tokens=8"]):
            a = run("explain", "--json", "-m", ZOO_V3, *extra).json()
            b = run("run", "--json", "-m", ZOO_V3, "-p", "a", "-n", "1", *extra).json()["backends"]
            self.assertEqual(a["kv"], b["kv"])
            self.assertEqual(a["plugins"], b["plugins"])
            self.assertEqual(a["device"], b["device"])
            chosen = {(s["slot"], s["chosen"]) for s in a["slots"]}
            self.assertEqual(chosen, {(s["slot"], s["provider"]) for s in b["slots"]})

    def test_only_headers_are_read(self):
        """A file whose weights are NaN runs nothing, and is explained all the same."""
        data = bytearray(read(ZOO_V3))
        data[-200000:] = b"\xff" * 200000
        path = self.file("nan.gguf", bytes(data))
        self.assertEqual(run("explain", "-m", path).rc, 0)
        self.assertEqual(run("run", "-m", path, "-p", "a", "-n", "1").rc, 2)

    def test_slot_left_over(self):
        for name in ("refx", "nobody"):
            r = run("explain", "--json", "-m", MODEL, "-s", f"slots.mla.decode={name}")
            self.assertEqual(r.rc, 1, r)
            j = r.json()
            self.assertIn(f'no provider is called "{name}"', j["error"]["message"])
            self.assertIn(j["error"]["message"].encode(), r.err)
            rows = {s["slot"]: s for s in j["slots"]}
            self.assertIsNone(rows["mla.decode"]["chosen"])
            self.assertEqual(rows["quant"]["chosen"], "ref")
            self.assertNotIn("mla.index", rows)
            self.assertIsNone(j["kv"]["dtype"])
            t = run("explain", "-m", MODEL, "-s", f"slots.mla.decode={name}")
            self.assertEqual(t.rc, 1)
            self.assertIn(b"see the error", t.out)

    def test_refusals_have_numbers(self):
        """ref has no device but the host."""
        r = run("explain", "--json", "-m", MODEL, "-s", "engine.device=cuda:3")
        self.assertEqual(r.rc, 1, r)
        s = r.json()["slots"]
        self.assertEqual([x["slot"] for x in s], ["device"])
        self.assertEqual(s[0]["candidates"][0]["verdict"], "no")
        reason = s[0]["candidates"][0]["reasons"][0]
        self.assertEqual(set(reason), {"code", "number", "field", "got", "want_lo", "want_hi", "got_name",
                                       "want_lo_name", "want_hi_name", "critical", "text"})
        self.assertTrue(reason["text"])

    def test_bad_input(self):
        for args in (["-m", "/nowhere.gguf"], ["-s", "slots.mla.decodex=ref"], ["-s", "engine.ctx=100000000"],
                     ["extra"], ["-s", "mla.decode@layers=90-91=ref"]):
            r = run("explain", "-m", MODEL, *args)
            self.assertEqual(r.rc, 2, r)
            self.assertEqual(r.out, b"", r)
        r = run("explain", "-m", MODEL, "-s", "slots.mla.decode@layers=90-91=ref")
        self.assertEqual(r.rc, 2, r)

    def test_zoo(self):
        for name in sorted(os.listdir(ZOO)):
            if not name.endswith(".gguf") or "golden" in name:
                continue
            r = run("explain", "--json", "-m", os.path.join(ZOO, name))
            self.assertEqual(r.rc, 0, r)
            j = r.json()
            self.assertEqual({s["slot"] for s in j["slots"]} | {"mla.index"}, SLOTS)


class Profiles(CliCase):
    def test_cpu(self):
        self.assertEqual(run("explain", "-m", MODEL, "-c", profile("cpu")).rc, 0)

    def named(self, name):
        """[(key, provider)] of the profile's [slots]."""
        text = read(profile(name)).decode()
        slots = re.search(r"(?ms)^\[slots\]\n(.*?)^\[", text).group(1)
        return re.findall(r"(?m)^([a-z.@=0-9-]+?) = ([a-z_, ]+)$", slots)

    def test_gpu_profiles(self):
        """Each names its plugins in its head, and says whether it is complete; where they are not installed it fails in
        one sentence that names what is missing, and binds once ref stands in for them: every other line of it holds."""
        for name in ("h200", "sm120-8x", "ab-attention"):
            head = read(profile(name)).decode().split("\n\n")[0]
            self.assertEqual("NOT YET COMPLETE" in head, name != "h200")
            keys = self.named(name)
            self.assertIn(("device", "device_cuda"), keys)
            missing = {p for k, p in keys} - {"ref", "auto"}
            for p in missing:
                self.assertIn(p, head, name)
            one_rank = ["-s", "parallel.tp=1"]
            ctx = ["-s", "engine.ctx=64", "-s", "engine.batch_tokens=64"]
            r = run("explain", "-m", MODEL, "-c", profile(name), *ctx)
            if name == "sm120-8x":
                self.assertEqual(r.rc, 2, r)
                self.assertIn(b"parallel.tp", r.err)
            r = run("explain", "--json", "-m", MODEL, "-c", profile(name), *one_rank, *ctx)
            self.assertEqual(r.rc, 1, r)
            self.assertIn('no provider is called "device_cuda"', r.json()["error"]["message"])
            self.assertIn("backplane plugins", r.json()["error"]["message"])
            stand_in = [x for k, p in keys if p not in ("ref", "auto") for x in ("-s", f"slots.{k}=ref")]
            r = run("explain", "--json", "-m", MODEL, "-c", profile(name), *one_rank, *ctx, *stand_in,
                    "-s", "engine.device=cpu")
            self.assertEqual(r.rc, 0, r)
            spoken = run("run", "-m", MODEL, "-c", profile(name), *one_rank, *ctx, *stand_in, "-s", "engine.device=cpu",
                         "-p", "1 2 3 4 5 6 7 8 9 10", "-n", "2", "--temp", "0")
            self.assertEqual((spoken.rc, spoken.out), (0, b" 11\n"), spoken)
            rows = [(s["slot"], s["layers"]) for s in r.json()["slots"]]
            if name == "ab-attention":
                self.assertIn(("mla.decode", "0-4"), rows, "equal answers share a row")


if __name__ == "__main__":
    unittest.main()
