"""test_broken_plugins.py - plugins that are broken in one way each, all in one folder with sound ones: the loader, the
engine and backplane-check against the table of plugin_table.py.

Each is refused for its own reason and no other; the kit itself neither crashes nor hangs; a sound plugin beside them passes
the kit and serves. BP_CLI, BP_CHECK, BP_BUILD, BP_SOURCE are set by CMake. SPDX-License-Identifier: MIT
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from plugin_table import FAULTS, Differs, Dies, Hangs, Refused, Serves, Stops

CLI = os.environ["BP_CLI"]
CHECK = os.environ["BP_CHECK"]
BUILD = os.environ["BP_BUILD"]
SANITIZED = os.environ.get("BP_SANITIZE", "") != ""
ZOO = os.path.join(os.environ["BP_SOURCE"], "tests", "data", "zoo", "zoo-v3")
# Of plugins that leak, and of the kit's children, which end in the middle of their work.
os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
SLOTS = ("device", "dense", "quant", "mla.common", "mla.prefill", "mla.decode", "mla.index", "moe", "coll")
SOUND = {"sound_dense": "dense", "sound_decode": "mla.decode"}
KIT_TIMEOUT = {"hang_open": 1}  # seconds without progress; the others get on, if slowly on a busy machine
PATIENCE = 300     # for what ends; nothing here takes more than a few seconds
HANGING = 3        # seconds after which the engine counts as hanging
PROGRESS = (b"verifying ...\n", b"loading ...\n", b"opening the model ...\n")


def built(fault):
    folder = "test_plugins" if fault.iface == "coll" else "broken_plugins"
    return os.path.join(BUILD, folder, f"backplane-{fault.name}.so")


class Broken(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """One folder that nobody else may write to, whatever the umask: what is in it is trusted, and broken."""
        folder = tempfile.TemporaryDirectory(prefix="bp-broken-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = os.path.realpath(folder.name)
        files = [built(f) for f in FAULTS] + [os.path.join(BUILD, "broken_plugins", f"backplane-{s}.so") for s in SOUND]
        for path in files:
            if os.path.exists(path):
                to = os.path.join(cls.folder, os.path.basename(path))
                shutil.copyfile(path, to)
                os.chmod(to, 0o644)

    def path_of(self, name):
        path = os.path.join(self.folder, f"backplane-{name}.so")
        if not os.path.exists(path):
            self.assertEqual(name, "throws", "it was not built")
            self.skipTest("it needs a C++ compiler")
        return path

    # ---- the engine ----

    def verify(self, name, slot, timeout=PATIENCE, then=None):
        """`verify`, where all slots are ref's but one, whose list names the plugin. dense has ops that it leaves to ref."""
        if then is None:
            then = "" if slot == "mla.decode" else ",ref"
        self.path_of(name)
        args = [CLI, "verify", "-m", f"{ZOO}.gguf", "--golden", f"{ZOO}.golden.gguf", "--mode", "step", "--json",
                "-s", "kv.dtype=f32", "-s", f"engine.plugin_path={self.folder}"]
        for s in SLOTS:
            value = "ref" if s != slot else name + then
            args += ["-s", f"slots.{s}={value}"]
        done = subprocess.run(args, capture_output=True, check=False, timeout=timeout)
        for line in PROGRESS:
            done.stderr = done.stderr.replace(line, b"")
        return done

    def sentence(self, done, status, words):
        self.assertEqual(done.returncode, status, done)
        said = done.stderr.decode()
        self.assertEqual(said.count("\n"), 1, said)
        error = json.loads(done.stdout)["error"]
        self.assertTrue(error["message"], done)
        for word in words:
            self.assertIn(word, said)

    def provider(self, done, slot):
        return {s["provider"] for s in json.loads(done.stdout)["backends"]["slots"] if s["slot"] == slot}

    def engine(self, fault):
        want = fault.engine
        if isinstance(want, Hangs):
            with self.assertRaises(subprocess.TimeoutExpired):
                self.verify(fault.name, fault.iface, HANGING)
            return
        done = self.verify(fault.name, fault.iface)
        if isinstance(want, Dies):
            # A sanitizer turns the signal into an exit status of its own.
            died = done.returncode not in (0, 1, 2, 3) if not SANITIZED else done.returncode != 0
            self.assertTrue(died, done)
            if not SANITIZED:
                self.assertEqual(done.returncode, -want.by, done)
        elif isinstance(want, Refused):
            self.sentence(done, 2, want.words + (fault.name,))
        elif isinstance(want, Stops):
            self.sentence(done, 3, want.words)
        elif isinstance(want, Differs):
            self.assertEqual(done.returncode, 1, done)
            self.assertIs(json.loads(done.stdout)["pass"], False)
            self.assertIn(fault.name, self.provider(done, fault.iface))
        else:
            self.assertIsInstance(want, Serves)
            self.assertEqual(done.returncode, 0, done)
            if want.said:
                self.assertIn(want.said, done.stderr.decode())
            if fault.name != "prints":  # which tears the JSON: that is the fault
                self.assertIn(fault.name, self.provider(done, fault.iface))

    def test_a_broken_table_is_not_passed_over(self):
        """A provider behind it in the list would hide the mistake."""
        tables = [f for f in FAULTS if f.rules[0] == "3.7"]
        self.assertGreater(len(tables), 5)
        for fault in tables:
            with self.subTest(fault=fault.name):
                done = self.verify(fault.name, "mla.decode", then=",ref")
                self.sentence(done, 2, fault.engine.words + (fault.name, "cannot be used"))

    def test_listed(self):
        """`plugins` runs no code of theirs, so it lists them all, and refuses what the files alone give away."""
        done = subprocess.run([CLI, "plugins", "--json", "-s", f"engine.plugin_path={self.folder}"], capture_output=True,
                              check=True, timeout=PATIENCE)
        listed = {p["name"]: p for p in json.loads(done.stdout)["plugins"]}
        for fault in FAULTS:
            if not os.path.exists(built(fault)):
                continue
            with self.subTest(fault=fault.name):
                reason = fault.engine.listed if isinstance(fault.engine, Refused) else None
                entry = listed[fault.name]
                self.assertEqual((entry["status"], entry.get("reason")),
                                 ("refused", reason) if reason else ("ready", None))
                if reason:
                    self.assertTrue(any(word in entry["why"] for word in fault.engine.words), entry)
        for name in SOUND:
            self.assertEqual(listed[name]["status"], "ready")

    # ---- the kit ----

    def check(self, name, *args):
        done = subprocess.run([CHECK, self.path_of(name), "--json", "--quick", "--timeout", str(KIT_TIMEOUT.get(name, 60)),
                               *args], capture_output=True, check=False, timeout=PATIENCE)
        self.assertIn(done.returncode, (0, 1), done)
        report = json.loads(done.stdout)
        self.assertEqual(done.returncode, 1 if report["findings"] else 0, done)
        return report["findings"]

    def kit(self, fault):
        words = ("--stage", fault.stages) if fault.stages else ()
        if SANITIZED and fault.iface == "mla.decode":
            # The large cases are slow there, and the sound plugin of that source runs them, and all stages.
            words = ("--stage", fault.rules[0].split(".")[0], "--case", "C 80")
        findings = self.check(fault.name, *words)
        seen = {f["rule"] for f in findings}
        rule = f"KIT-{fault.rules[0]}"
        if SANITIZED and rule not in seen and "KIT-4.10" in seen:
            return  # the sanitizer was faster
        self.assertIn(rule, seen, findings)
        for f in findings:
            self.assertTrue(f["seen"] and f["expected"], f)
        if fault.reason:
            self.assertIn(fault.reason, {f["reason"] for f in findings if f["rule"] == rule}, findings)
        if not SANITIZED:
            self.assertLessEqual(seen, {f"KIT-{r}" for r in fault.rules}, findings)

    def test_rules_exist(self):
        listed = subprocess.run([CHECK, "--list"], capture_output=True, check=True, text=True, timeout=PATIENCE).stdout
        for fault in FAULTS:
            for rule in fault.rules:
                self.assertIn(f"KIT-{rule} ", listed, fault.name)

    # ---- the sound ones beside them ----

    def test_sound(self):
        for name, slot in SOUND.items():
            with self.subTest(name=name):
                self.assertEqual(self.check(name), [])
                done = self.verify(name, slot)
                self.assertEqual((done.returncode, done.stderr), (0, b""), done)
                self.assertIs(json.loads(done.stdout)["pass"], True)
                self.assertIn(name, self.provider(done, slot))

    def test_all_are_here(self):
        names = [f.name for f in FAULTS]
        self.assertEqual(len(names), len(set(names)))
        self.assertGreaterEqual(len(names), 20)
        files = {f[len("backplane-"):-len(".so")] for f in os.listdir(os.path.join(BUILD, "broken_plugins"))
                 if f.endswith(".so")}
        self.assertEqual(files - set(names), set(SOUND), "a plugin that is in no table")
        print(f"{len(names)} broken plugins", file=sys.stderr)


def add_tests():
    for fault in FAULTS:
        # What damages memory is not let into the engine: what that then shows is chance. How long supports() takes is not
        # a sanitizer's matter, and it takes long.
        kinds = ("engine",) * (fault.engine is not None) + ("kit",) * (not SANITIZED or fault.name != "slow_supports")
        for what in kinds:
            def one(self, fault=fault, what=what):
                getattr(self, what)(fault)
            one.__doc__ = fault.wrong
            setattr(Broken, f"test_{what}_{fault.name}", one)


add_tests()

if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
