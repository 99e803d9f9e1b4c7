"""test_kit_faults.py - faults of a backend that no model shows are found by backplane-check: copies of the reference backend
with one edit each (KIT_FAULTS of ref_edits/faults.py). The copy without an edit has no findings, and what a fault does not
touch has none either.
BP_CHECK and BP_BUILD are set by CMake. SPDX-License-Identifier: MIT
"""
import json
import os
import subprocess
import sys
import unittest

CHECK, BUILD = os.environ["BP_CHECK"], os.environ["BP_BUILD"]
SANITIZED = os.environ.get("BP_SANITIZE", "") != ""
os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "ref_edits"))
from faults import KIT_FAULTS  # noqa: E402  (the path is known only now)


def findings(name, iface, case=""):
    path = os.path.join(BUILD, "faulty_ref", f"backplane-{name}.so")
    done = subprocess.run([CHECK, path, "--json", "--stage", "6", "--iface", iface, "--timeout", "120",
                           *(["--case", case] if case else ["--quick"])],
                          capture_output=True, check=False, timeout=900)
    assert done.returncode in (0, 1), done
    report = json.loads(done.stdout)
    assert report["name"] == name, report
    assert {"stage": 6, "pass": not report["findings"]} in report["stages"], report
    return report["findings"]


# Sanitizers look at the way from a fault to a finding once; the numbers of every interface have them in tests/conform.
FAULTS = KIT_FAULTS[:1] if SANITIZED else KIT_FAULTS


class KitFaults(unittest.TestCase):
    def test_the_unedited_copy_passes(self):
        for iface in sorted({iface for f in FAULTS for iface in f.breaks}):
            with self.subTest(iface=iface):
                self.assertEqual(findings("unedited_ref", iface), [])

    def test_every_fault_is_found(self):
        self.assertGreater(len(KIT_FAULTS), 5)
        print(f"{len(FAULTS)} of {len(KIT_FAULTS)} faults", file=sys.stderr)
        for fault in FAULTS:
            for iface, rules in fault.breaks.items():
                with self.subTest(fault=fault.name, iface=iface):
                    found = findings(f"faulty_{fault.name}", iface, fault.case)
                    seen = {f["rule"] for f in found}
                    self.assertIn(f"KIT-{rules[0]}", seen, found)
                    self.assertLessEqual(seen, {f"KIT-{r}" for r in rules}, found)
                    self.assertEqual({f["iface"] for f in found}, {iface}, found)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
