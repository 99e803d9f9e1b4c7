"""test_device.py - backplane-check --gpu without a GPU: the reference on a device whose memory the host cannot touch passes
everything, and each mistake of such a plugin is found under its rule.
SPDX-License-Identifier: MIT
"""
import json
import os
import subprocess
import unittest

CHECK, PLUGINS = os.environ["BP_CHECK"], os.environ["BP_PLUGINS"]
IFACES = ("bp.device", "bp.dense", "bp.quant", "bp.moe", "bp.mla.common", "bp.mla.prefill", "bp.mla.decode", "bp.mla.index")


FAKE = os.path.join(PLUGINS, "backplane-fake.so")
# Seconds for the cases of an interface in a stage; a sanitizer's part is to see the carrying itself.
SANITIZED = os.environ.get("BP_SANITIZE", "") != ""
BUDGET = "0.4"


def run(fault, *args):
    return subprocess.run([CHECK, FAKE, "--set", f"fault={fault}", "--gpu", "0", "--timeout", "120", *args],
                          capture_output=True, check=False, timeout=800)


def report(name, *args):
    done = run(name, "--json", *args)
    assert done.returncode in (0, 1), (name, args, done)
    value = json.loads(done.stdout)
    assert value["pass"] == (done.returncode == 0), value
    return value


def rules(value):
    return {f["rule"] for f in value["findings"]}


class Sound(unittest.TestCase):
    def test_the_sound_one_passes_every_stage(self):
        if SANITIZED:  # the slowest interface of all is enough for faults of memory
            self.assertEqual(report("sound", "--quick", "--budget", "1", "--iface", "bp.mla.decode")["findings"], [])
            return
        r = report("sound", "--quick", "--budget", "0.4")
        self.assertEqual(r["findings"], [])
        self.assertEqual(r["levels"]["core"], "pass")
        self.assertEqual(r["levels"]["graph"], "pass")
        self.assertIn("out of reach", r["device"])
        for stage in r["stages"]:
            self.assertTrue(stage["pass"], r["stages"])
        for iface in IFACES:
            for stage in (5, 6, 7, 8, 9):
                if (stage == 8 and iface == "bp.mla.prefill") or (stage > 6 and iface == "bp.device"):
                    continue  # its claim is UNIFORM, and segments are not
                n = [s["cases"] for s in r["sums"] if s["stage"] == stage and s["iface"] == iface]
                self.assertEqual(len(n), 1, (iface, stage, r["sums"]))
                self.assertTrue(n[0] > 0 or iface == "bp.device", (iface, stage))

    def test_a_case_filter_and_a_budget(self):
        r = report("sound", "--stage", "6", "--iface", "bp.dense", "--case", "rope style 1")
        self.assertEqual(r["findings"], [])
        self.assertEqual([s["cases"] for s in r["sums"] if s["stage"] == 6], [35])
        r = report("sound", "--stage", "6", "--iface", "bp.quant", "--budget", "1")
        self.assertEqual(r["findings"], [])
        self.assertTrue(any("the budget of 1 s was used up" in n for n in r["notes"]), r["notes"])


class Usage(unittest.TestCase):
    def test_without_a_device_one_sentence_and_status_2(self):
        for done in (run("no_device"), subprocess.run([CHECK, FAKE, "--gpu", "5"],
                                                      capture_output=True, check=False, timeout=100)):
            self.assertEqual((done.returncode, done.stdout), (2, b""), done)
            self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)
            self.assertIn(b"cannot be used: ", done.stderr)
            self.assertIn(b"no such device", done.stderr)

    def test_wrong_lines_are_refused(self):
        sound = FAKE
        hostile = os.path.join(PLUGINS, "backplane-hostile.so")
        for args in (["--reference", "--gpu", "0"], [sound, "--gpu", "x"], [sound, "--gpu", "-1"], [sound, "--budget", "0"], [sound, "--budget", "1s"], [sound, "--budget", "nan"],
                     [sound, "--device-plugin", sound], [hostile, "--gpu", "0"],
                     [sound, "--gpu", "0", "--device-plugin", "/no/such/file.so"]):
            done = subprocess.run([CHECK, *args], capture_output=True, check=False, timeout=100)
            self.assertEqual((done.returncode, done.stdout), (2, b""), (args, done))
            self.assertEqual(done.stderr.count(b"\n"), 1, (args, done.stderr))


@unittest.skipIf(SANITIZED, "which fault is found is the release build's matter; the code that runs is that of the sound one")
class Faults(unittest.TestCase):
    def expect(self, name, stage, iface, *wanted):
        r = report(name, "--stage", stage, "--iface", iface, "--quick", "--budget", BUDGET)
        with self.subTest(fault=name, stage=stage, iface=iface):
            self.assertEqual(rules(r), {f"KIT-{w}" for w in wanted}, r["findings"])
            self.assertLessEqual({f["iface"] for f in r["findings"]}, {iface}, r["findings"])
        return r

    def test_memory(self):
        for iface in ("bp.dense", "bp.quant", "bp.moe", "bp.mla.decode"):
            self.expect("past_tensor", "6", iface, "6.2")
            self.expect("writes_input", "6", iface, "6.2")
        self.expect("past_scratch", "6", "bp.mla.decode", "6.10")
        self.expect("past_plan", "6", "bp.mla.decode", "6.10")
        self.expect("writes_meta", "6", "bp.mla.decode", "6.2")

    def test_numbers(self):
        self.expect("wrong", "6", "bp.mla.prefill", "6.5")
        found = report("default_stream", "--stage", "6", "--iface", "bp.mla.decode", "--quick")
        self.assertIn("KIT-6.9", rules(found), found["findings"])

    def test_after_a_lost_device_the_rest_is_tried_in_new_children(self):
        r = report("loses_device", "--stage", "6", "--iface", "bp.mla.decode", "--quick")
        self.assertEqual(rules(r), {"KIT-6.1"}, r["findings"])
        self.assertTrue(all("DEVICE_LOST" in f["seen"] for f in r["findings"]), r["findings"])
        self.assertGreater(len([s for s in r["sums"] if s["stage"] == 6]), 3)

    def test_streams(self):
        for iface in ("bp.dense", "bp.mla.decode"):
            self.expect("default_stream", "7", iface, "7.1")
        self.expect("waits", "7", "bp.mla.decode", "7.2")
        self.expect("allocates", "7", "bp.mla.decode", "7.3")
        self.expect("other_context", "7", "bp.mla.decode", "7.4")

    def test_capture(self):
        self.expect("no_capture", "8", "bp.dense", "8.1")
        self.expect("frozen_lengths", "8", "bp.mla.decode", "8.2")
        self.expect("host_meta", "8", "bp.mla.common", "8.2")
        r = self.expect("low_claim", "8", "bp.dense")
        self.assertTrue(any("the claim could be higher" in n for n in r["notes"]), r["notes"])
        self.assertEqual(r["levels"]["graph"], "pass" if any(s["cases"] for s in r["sums"]) else "nothing was run")

    def test_repetition(self):
        self.expect("rare_bit", "9", "bp.dense", "9.1")
        self.expect("batch_variant", "9", "bp.quant", "9.2")
        for name in ("waits", "no_capture", "low_claim"):
            self.assertEqual(report(name, "--stage", "6", "--iface", "bp.dense", "--quick")["findings"], [])


if __name__ == "__main__":
    unittest.main()
