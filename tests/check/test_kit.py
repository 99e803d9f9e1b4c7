"""test_kit.py - backplane-check itself: usage, JSON, the table of rules, damaged files, hostile plugins. Whatever a plugin
does, the kit ends with 0, 1 or 2, prints one whole report, and leaves no process behind.
SPDX-License-Identifier: MIT
"""
import json
import os
import random
import re
import subprocess
import tempfile
import time
import unittest

CHECK = os.environ["BP_CHECK"]
HOSTILE = os.path.join(os.environ["BP_PLUGINS"], "backplane-hostile.so")
SOURCE = os.environ["BP_SOURCE"]
SANITIZED = os.environ.get("BP_SANITIZE", "") != ""


def run(*args, timeout=300):
    return subprocess.run([CHECK, *args], capture_output=True, timeout=timeout, check=False)


def report(*args):
    done = run("--json", *args)
    assert done.returncode in (0, 1), (args, done)
    value = json.loads(done.stdout.decode("utf-8"))
    assert done.returncode == (0 if value["pass"] else 1), (args, value)
    assert value["pass"] == (not value["findings"]), value
    return value


def rules(value):
    return {f["rule"] for f in value["findings"]}


class Usage(unittest.TestCase):
    def test_wrong_lines_are_refused(self):
        for args in ([], ["--nonsense"], ["a.so", "b.so"], ["--stage"], ["--stage", "7", "--reference"],
                     ["--stage", "", "--reference"], ["--stage", "1,,2", "--reference"], ["--stage", "-1", "--reference"],
                     ["--iface", "bp.none", "--reference"], ["--set", "novalue", "--reference"], ["--seed", "x", "--reference"],
                     ["--timeout", "0", "--reference"], ["--reference", HOSTILE], ["/no/such/file.so"], ["/"]):
            done = run(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertEqual(done.stdout, b"", args)
            self.assertEqual(done.stderr.count(b"\n"), 1, (args, done.stderr))

    def test_help_man_version(self):
        for option in ("--help", "--man", "--version", "--list"):
            done = run(option)
            self.assertEqual((done.returncode, done.stderr), (0, b""), option)
        options = set(re.findall(r"^  (--[a-z]+)", run("--help").stdout.decode(), re.M))
        self.assertTrue({"--iface", "--stage", "--set", "--seed", "--json", "--list", "--reference"} <= options)
        man = run("--man").stdout.decode().replace("\\-", "-")
        for option in options:
            self.assertIn(f".B {option}", man)

    def test_the_table_of_rules_is_in_the_docs(self):
        listed = re.findall(r"^(KIT-[\d.]+) +(.*)\n +otherwise: (.*)$", run("--list").stdout.decode(), re.M)
        self.assertGreater(len(listed), 50)
        with open(os.path.join(SOURCE, "docs", "kit.md"), encoding="utf-8") as f:
            rows = re.findall(r"^\| (KIT-[\d.]+) \| (.*) \| (.*) \| (?:loader, kit|kit) \|$", f.read(), re.M)
        self.assertEqual(rows, [(i, t.replace("|", "\\|"), o.replace("|", "\\|")) for i, t, o in listed])

    def test_nothing_is_written_where_it_runs(self):
        """A plugin that writes to the working folder does so in a folder that is gone afterwards."""
        with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as tmp:
            done = subprocess.run([CHECK, "--json", "--stage", "2", "--set", "mode=write", HOSTILE], cwd=here,
                                  env=dict(os.environ, TMPDIR=tmp), capture_output=True, timeout=300, check=False)
            self.assertIn(done.returncode, (0, 1), done)
            self.assertEqual((os.listdir(here), os.listdir(tmp)), ([], []))
            done = subprocess.run([CHECK, "--stage", "2", HOSTILE], env=dict(os.environ, TMPDIR=here + "/none"),
                                  capture_output=True, timeout=300, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, b""), done)
            self.assertIn(b"TMPDIR", done.stderr)

    def test_json_of_the_reference(self):
        value = report("--reference", "--stage", "1,2", "--seed", "5")
        self.assertEqual((value["name"], value["seed"], value["file"]), ("ref", 5, None))
        self.assertEqual(value["findings"], [])
        self.assertEqual([s["stage"] for s in value["stages"]], [1, 2])
        self.assertIn("core", value["levels"])


    def test_nothing_to_run_is_no_pass(self):
        """A plugin whose ops are not made on the CPU was not looked at, and the report says so."""
        value = report("--quick", HOSTILE)
        self.assertEqual(rules(value), set())
        self.assertEqual({s["stage"]: s["pass"] for s in value["stages"]},
                         {0: True, 1: True, 2: True, 3: True, 4: True, 5: None, 6: None, 10: None})
        self.assertEqual(value["levels"], {"core": "nothing was run", "deterministic": "nothing was run", "graph": "not checked on the CPU",
                                           "wrappers": "nothing was run"})
        text = run("--quick", HOSTILE).stdout.decode()
        for stage in (5, 6, 10):
            self.assertIn(f"stage {stage}: nothing to run\n", text)
        self.assertNotIn("core: pass", text)
        value = report("--reference", "--stage", "6", "--iface", "bp.coll")
        self.assertIn({"stage": 6, "pass": True}, value["stages"])


class Files(unittest.TestCase):
    """Stage 0 reads hostile bytes; stage 1 then lets the dynamic linker have them, in a child."""

    def check(self, data, stage):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "damaged.so")
            with open(path, "wb") as f:
                f.write(data)
            return report(path, "--stage", stage, "--timeout", "10")

    def test_no_plugins(self):
        for data in (b"", b"\x7fELF", b"\x7fELF" + bytes(60), b"#!/bin/sh\n", bytes(4096)):
            self.assertLessEqual({"KIT-0.1"}, rules(self.check(data, "0")))

    def test_damage(self):
        seed = random.randrange(1 << 30)
        print("seed", seed)
        rng = random.Random(seed)
        with open(HOSTILE, "rb") as f:
            whole = f.read()
        for n in [rng.randrange(len(whole)) for _ in range(8)]:
            self.check(whole[:n], "0")
        for _ in range(40):
            damaged = bytearray(whole)
            for _ in range(rng.choice((1, 4, 40))):
                # Headers first: most of a file is code that stage 0 does not look at.
                damaged[rng.randrange(rng.choice((64, 1024, len(whole))))] = rng.choice((0, 1, 0x7f, 0x80, 0xff))
            self.check(bytes(damaged), "0,1" if rng.random() < 0.5 else "0")


class Hostile(unittest.TestCase):
    def act(self, mode, stage="2", timeout="3"):
        begin = time.monotonic()
        value = report(HOSTILE, "--stage", stage, "--set", f"mode={mode}", "--timeout", timeout)
        self.assertLess(time.monotonic() - begin, 120)
        self.assertEqual(value["name"], "hostile")
        return value

    def life(self, mode, timeout="3"):
        return self.act(mode, "4", timeout)

    def test_nothing(self):
        self.assertEqual(rules(self.life("none")), set())

    def test_ends(self):
        for mode in ("exit", "quick_exit", "kill", "stack", "noise_abort", "no_handlers", "scribble"):
            value = self.life(mode)
            self.assertTrue(rules(value) & {"KIT-4.10", "KIT-6.10"}, (mode, value["findings"]))
        said = self.life("exit")["findings"][0]
        self.assertIn("exit(0)", said["seen"])
        self.assertEqual(said["op"], "open")

    def test_hangs(self):
        for mode in ("stop", "atexit"):
            self.assertIn("KIT-4.11", rules(self.life(mode, "2")), mode)

    @unittest.skipIf(SANITIZED, "a sanitizer needs memory and files of its own")
    def test_damage_to_the_child(self):
        for mode in ("close_all", "noise", "no_memory", "unmap"):
            self.life(mode)  # whatever comes of it, one whole report

    def test_nothing_is_left_behind(self):
        self.life("fork")
        for _ in range(50):
            with os.popen("ps -eo pgid,stat,args") as f:
                left = [line for line in f if HOSTILE in line and CHECK in line and " Z" not in line]
            if not left:
                return
            time.sleep(0.1)
        self.fail(left)


if __name__ == "__main__":
    unittest.main()
