"""test_abi.py - plugins of every kept ABI number against today's engine and kit.

Each folder MAJOR.MINOR beside this file holds the headers of that number, the source of a plugin written against them and
the plugin as it was built then (x86-64). A number that this engine serves must still build, pass the kit and compute; any
other must be refused for its ABI, before its code runs. Which numbers those are: the exact one while the major is 0,
afterwards every minor up to today's of the same major.
BP_CLI, BP_CHECK, BP_CC, BP_SOURCE, BP_SANITIZE are set by CMake. SPDX-License-Identifier: MIT
"""
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ENV = {name: os.environ[name] for name in ("BP_CLI", "BP_CHECK", "BP_CC", "BP_SOURCE", "BP_SANITIZE")}
HERE = os.path.join(ENV["BP_SOURCE"], "tests", "abi")
STORED = "backplane-frozen.so"
NUMBERS = sorted(tuple(map(int, n.split("."))) for n in os.listdir(HERE) if re.fullmatch(r"\d+\.\d+", n))


def today():
    with open(os.path.join(ENV["BP_SOURCE"], "core/include/backplane/plugin.h"), encoding="utf-8") as f:
        return tuple(map(int, re.search(r"BP_ABI_MAJOR = (\d+), BP_ABI_MINOR = (\d+)", f.read()).groups()))


def is_served(number):
    now = today()
    return number == now if now[0] == 0 else number[0] == now[0] and number[1] <= now[1]


def folder_of(number):
    return os.path.join(HERE, "%d.%d" % number)


class KeptNumbers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="bp-abi-")
        self.addCleanup(folder.cleanup)
        self.tmp, self.plugins = folder.name, os.path.join(folder.name, "plugins")
        os.mkdir(self.plugins, 0o755)

    def place(self, source):
        """The plugin in a folder of its own, which others may not write to."""
        path = os.path.join(self.plugins, STORED)
        shutil.copyfile(source, path)
        os.chmod(path, 0o755)
        return path

    def build(self, number):
        path, folder = os.path.join(self.tmp, "built.so"), folder_of(number)
        version_script = os.path.join(ENV["BP_SOURCE"], "sdk/cmake/backplane-plugin.map")
        done = subprocess.run([ENV["BP_CC"], "-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-shared",
                               f"-Wl,--version-script={version_script}", "-Wl,-z,defs", "-Wl,-z,now",
                               "-I", os.path.join(folder, "include"), os.path.join(folder, "plugin.c"), "-o", path, "-lm"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def verify(self, path):
        data = os.path.join(ENV["BP_SOURCE"], "tests/data/zoo/zoo-glm5")
        return subprocess.run([ENV["BP_CLI"], "verify", "-m", data + ".gguf", "--golden", data + ".golden.gguf", "--json",
                               "--mode", "step", "-s", "kv.dtype=f32", "-s", f"engine.plugin_path={self.plugins}",
                               "-s", "slots.mla.decode=" + self.name_of(path)],
                              capture_output=True, text=True, check=False, timeout=300)

    @staticmethod
    def name_of(path):
        with open(path, "rb") as f:
            data = f.read()
        at = data.index(b"Backplane\0\0\0") + 12 + 16  # owner, then the numbers
        return data[at:at + 32].split(b"\0")[0].decode()

    def serves(self, path):
        if not ENV["BP_SANITIZE"]:  # a plain plugin in a sanitized kit would only be slower
            kit = subprocess.run([ENV["BP_CHECK"], path, "--quick", "--json"], capture_output=True, text=True, check=False,
                                 timeout=600)
            self.assertEqual(kit.returncode, 0, kit.stdout[-3000:] + kit.stderr[-500:])
        done = self.verify(path)
        self.assertEqual(done.returncode, 0, done.stdout[-1500:] + done.stderr)
        result = json.loads(done.stdout)
        self.assertTrue(result["pass"])
        served = {s["provider"] for s in result["backends"]["slots"] if s["slot"] == "mla.decode"}
        self.assertEqual(served, {self.name_of(path)})

    def refused(self, path):
        done = self.verify(path)
        self.assertEqual(done.returncode, 2, done.stdout[-500:] + done.stderr)
        self.assertIn("ABI", done.stderr + done.stdout)

    def test_todays_number_is_kept(self):
        self.assertIn(today(), NUMBERS, "scripts/freeze-abi keeps it")

    def test_stored_plugins(self):
        if platform.machine() != "x86_64":
            self.skipTest("the stored plugins are of x86-64")
        for number in NUMBERS:
            with self.subTest(number=number):
                path = self.place(os.path.join(folder_of(number), STORED))
                (self.serves if is_served(number) else self.refused)(path)

    def test_plugins_built_from_kept_headers(self):
        for number in NUMBERS:
            with self.subTest(number=number):
                path = self.place(self.build(number))
                (self.serves if is_served(number) else self.refused)(path)

    def test_a_number_that_is_not_served_is_refused(self):
        """The newest kept headers with a number of tomorrow."""
        folder = os.path.join(self.tmp, "source")
        shutil.copytree(folder_of(NUMBERS[-1]), folder)
        header = os.path.join(folder, "include/backplane/plugin.h")
        with open(header, encoding="utf-8") as f:
            text = f.read()
        with open(header, "w", encoding="utf-8") as f:
            f.write(re.sub(r"BP_ABI_MINOR = (\d+)", lambda m: f"BP_ABI_MINOR = {int(m[1]) + 1}", text))
        path = os.path.join(self.tmp, "tomorrow.so")
        done = subprocess.run([ENV["BP_CC"], "-std=c11", "-fPIC", "-fvisibility=hidden", "-shared", "-I",
                               os.path.join(folder, "include"), os.path.join(folder, "plugin.c"), "-o", path, "-lm"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.refused(self.place(path))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
