"""test_dropin.py - the promise that Backplane stands on: a plugin built out of tree, against an installed prefix, is used
by the unchanged program because an INI names it.

Installs this build into a temporary prefix and moves it; builds the plugin of ./plugin and the templates against it; then
talks to the installed program only. BP_BUILD, BP_SOURCE and the tools are set by CMake.
SPDX-License-Identifier: MIT
"""
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ENV = {name: os.environ[name] for name in ("BP_BUILD", "BP_SOURCE", "BP_CMAKE", "BP_CC", "BP_GENERATOR", "BP_READELF",
                                           "BP_NM", "BP_SANITIZE")}
ZOO = os.path.join(ENV["BP_SOURCE"], "tests", "data", "zoo")
HERE = os.path.dirname(os.path.abspath(__file__))
ENTRY = "bp_plugin_query_v1"


def command(*args, cwd=None, env=None):
    """Runs it, insists on success, returns what it wrote."""
    done = subprocess.run(args, capture_output=True, text=True, check=False, cwd=cwd, env=env, timeout=600)
    assert done.returncode == 0, f"{args}\nexit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def zoo(name):
    return os.path.join(ZOO, f"zoo-{name}.gguf"), os.path.join(ZOO, f"zoo-{name}.golden.gguf")


def has_nvcc():
    return shutil.which("nvcc") is not None or os.path.exists("/usr/local/cuda/bin/nvcc")


class DropIn(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="bp-dropin-")
        cls.addClassCleanup(folder.cleanup)
        cls.tmp = folder.name
        first = os.path.join(cls.tmp, "first")
        command(ENV["BP_CMAKE"], "--install", ENV["BP_BUILD"], "--prefix", first)
        # Nothing in the tree may know where it was installed to.
        cls.prefix = os.path.join(cls.tmp, "moved")
        os.rename(first, cls.prefix)
        cls.program = os.path.join(cls.prefix, "bin", "backplane")
        cls.plugins = os.path.join(cls.prefix, "lib", "backplane", "plugins")
        cls.templates = os.path.join(cls.prefix, "share", "backplane", "templates")
        cls.hash = sha256(cls.program)
        cls.work = {}
        cls.dropin = cls.build("dropin", os.path.join(HERE, "plugin"))
        cls.simple = cls.build("simple", os.path.join(cls.templates, "c_op"))
        cls.count = cls.build("count", os.path.join(cls.templates, "wrapper"))
        for path in (cls.dropin, cls.simple, cls.count):
            os.chmod(shutil.copy(path, cls.plugins), 0o755)  # whatever the umask: others may not write to a plugin
        model, _ = zoo("v3")
        cls.q8 = os.path.join(cls.tmp, "q8.gguf")
        command(cls.program, "quantize", model, cls.q8, "Q8_0")

    @classmethod
    def build(cls, name, source):
        """Copies an out-of-tree project, builds it against the moved prefix, returns its plugin."""
        work = cls.work[name] = os.path.join(cls.tmp, "project-" + name)
        shutil.copytree(source, work)
        command(ENV["BP_CMAKE"], "-G", ENV["BP_GENERATOR"], "-S", work, "-B", os.path.join(work, "build"),
                f"-DCMAKE_PREFIX_PATH={cls.prefix}", f"-DCMAKE_C_COMPILER={ENV['BP_CC']}")
        command(ENV["BP_CMAKE"], "--build", os.path.join(work, "build"))
        return os.path.join(work, "build", f"backplane-{name}.so")

    def tearDown(self):
        self.assertEqual(sha256(self.program), self.hash, "the program's bytes changed")

    def ini(self, **sections):
        """Writes an INI: section with keys as {'slots': {'quant': 'ref'}}; a dot in a section's name is '__'."""
        path = os.path.join(self.tmp, f"{self._testMethodName}.ini")
        with open(path, "w", encoding="utf-8") as f:
            for section, keys in sections.items():
                print(f"[{section.replace('__', '.')}]", file=f)
                for key, value in keys.items():
                    print(f"{key} = {value}", file=f)
        return path

    def verify(self, model, golden, *more, **sections):
        """(exit status, JSON, what was said) of verify, token by token, so that all attention is mla.decode."""
        sections.setdefault("engine", {})["log"] = "info"
        sections.setdefault("kv", {})["dtype"] = "f32"
        args = [self.program, "verify", "-c", self.ini(**sections), "-m", model, "--golden", golden, "--mode", "step",
                "--json", *more]
        done = subprocess.run(args, capture_output=True, text=True, check=False, timeout=600)
        self.assertIn(done.returncode, (0, 1), f"{args}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.returncode, json.loads(done.stdout), done.stderr

    def providers(self, result, slot):
        return {s["provider"] for s in result["backends"]["slots"] if s["slot"] == slot}

    def calls(self, said):
        found = re.findall(r"dropin: calls: decode (\d+), matmul (\d+)", said)
        self.assertEqual(len(found), 1, said[-2000:])
        return tuple(int(n) for n in found[0])

    # ---- what was installed and built ----

    def test_installed_tree(self):
        for path in ("bin/backplane", "include/backplane/sdk.h", "include/backplane/plugin.h",
                     "lib/cmake/Backplane/BackplaneConfig.cmake", "lib/pkgconfig/backplane-plugin.pc",
                     "share/backplane/backplane.ini", "share/backplane/profiles/cpu.ini",
                     "share/doc/backplane/LICENSE", "share/doc/backplane/docs/sdk.md"):
            self.assertTrue(os.path.isfile(os.path.join(self.prefix, path)), path)
        for folder, _, names in os.walk(os.path.join(self.prefix, "lib")):
            for name in names:
                with open(os.path.join(folder, name), "rb") as f:
                    data = f.read()
                self.assertFalse(self.tmp.encode() + b"/first" in data, f"{name} holds the prefix it was installed to")
                if not name.endswith(".so"):  # where debug information names sources
                    self.assertFalse(ENV["BP_SOURCE"].encode() + b"/" in data, f"{name} holds a path of the sources")

    def test_nothing_of_the_engine_inside(self):
        with open(os.path.join(self.work["dropin"], "build", "dropin.map"), encoding="utf-8") as f:
            link_map = f.read()
        self.assertIn("dropin.c", link_map)
        self.assertNotRegex(link_map, r"libbp_|libbackplane|bpi_|\bref_\w+\.c")
        self.assertNotIn(ENV["BP_BUILD"] + "/", link_map)
        for plugin in (self.dropin, self.simple, self.count):
            exported = [line.split()[-1] for line in command(ENV["BP_NM"], "-D", "--defined-only", plugin).splitlines()]
            self.assertEqual(exported, [ENTRY], plugin)
            self.assertNotIn("bpi_", command(ENV["BP_NM"], plugin))
            dynamic = command(ENV["BP_READELF"], "-dW", plugin)
            needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
            self.assertLessEqual(needed, {"libc.so.6", "libm.so.6"}, plugin)
            self.assertRegex(dynamic, r"RUNPATH.*\[\$ORIGIN\]")
            self.assertIn("BIND_NOW", dynamic)
            self.assertIn("Backplane", command(ENV["BP_READELF"], "-nW", plugin))

    @unittest.skipIf(re.search(r"\s", tempfile.gettempdir()), "pkg-config hands out flags with spaces unquoted")
    def test_by_hand_with_pkg_config(self):
        env = dict(os.environ, PKG_CONFIG_PATH=os.path.join(self.prefix, "lib", "pkgconfig"))
        flags = shlex.split(command("pkg-config", "--cflags", "--libs", "backplane-plugin", env=env))
        for name, libs in (("simple", ["-lm"]), ("count", [])):
            out = os.path.join(self.work[name], f"backplane-{name}.so")
            command(ENV["BP_CC"], "-std=c11", "-O3", os.path.join(self.work[name], "plugin.c"), "-o", out, *flags, *libs)
            exported = command(ENV["BP_NM"], "-D", "--defined-only", out).split()
            self.assertEqual(exported[2::3], [ENTRY])
            self.assertRegex(command(ENV["BP_READELF"], "-dW", out), r"RUNPATH.*\[\$ORIGIN\]")

    def test_cuda_template(self):
        if not has_nvcc():
            self.skipTest("no nvcc is installed, so the CUDA template cannot be compiled")
        plugin = self.build("silu_cuda", os.path.join(self.templates, "cuda_op"))
        exported = command(ENV["BP_NM"], "-D", "--defined-only", plugin).split()
        self.assertEqual(exported[2::3], [ENTRY])
        with open(plugin, "rb") as f:
            data = f.read()
        self.assertIn(b"sm_90", data)
        self.assertIn(b"sm_120", data)
        self.assertNotIn("libcudart", command(ENV["BP_READELF"], "-dW", plugin))

    def test_listed(self):
        listed = {p["name"]: p for p in json.loads(command(self.program, "plugins", "--json"))["plugins"]}
        self.assertLessEqual({"dropin", "simple", "count", "ref"}, set(listed))
        self.assertEqual(listed["dropin"]["version"], "0.3.1")
        self.assertEqual(listed["dropin"]["interfaces"], ["bp.mla.decode", "bp.quant"])
        self.assertEqual(listed["count"]["kind"], "wrapper")

    def test_conformance(self):
        """The kit that is installed beside the program has nothing against the plugins."""
        kit = os.path.join(self.prefix, "bin", "backplane-check")
        for plugin in (self.dropin, self.simple, self.count):
            # The whole grid for what is installed to be copied, a part for this test's own plugin and for the wrapper,
            # which would be run around every op of the reference.
            args = [] if plugin == self.simple else ["--quick"]
            env = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}
            done = subprocess.run([kit, "--json", *args, plugin], capture_output=True, text=True, check=False, timeout=600,
                                  env=env)
            report = json.loads(done.stdout)
            self.assertEqual((done.returncode, report["findings"]), (0, []), plugin)

    # ---- what the plugin computes ----

    def test_attention_passes_goldens(self):
        for name in ("v3", "glm5"):  # dense, and with sparse selection
            for provider in ("dropin", "simple"):
                rc, j, said = self.verify(*zoo(name), slots={"mla.decode": provider})
                self.assertEqual((rc, j["pass"]), (0, True), said[-2000:])
                self.assertEqual(self.providers(j, "mla.decode"), {provider})
                if provider == "dropin":
                    self.assertGreater(self.calls(said)[0], 0)

    def q8_limits(self):
        """What ref reaches on the Q8_0 file: the golden logits are those of the weights before they were quantized."""
        _, golden = zoo("v3")
        _, j, _ = self.verify(self.q8, golden, slots={"mla.decode": "ref", "quant": "ref"})
        self.assertEqual(self.providers(j, "quant"), {"ref"})
        self.assertTrue(math.isfinite(j["max_abs"]) and math.isfinite(j["max_kl"]))
        return j

    def test_drop_in(self):
        _, golden = zoo("v3")
        ref = self.q8_limits()
        # The fallback to ref covers what is not Q8_0: norms, the router, rows that are no multiple of a block.
        chosen = {"mla.decode": "dropin", "quant": "dropin, ref"}
        limits = ("--max-abs", repr(ref["max_abs"] * 1.001), "--kl", repr(ref["mean_kl"] * 1.001), "--gap", "2")
        rc, j, said = self.verify(self.q8, golden, *limits, slots=chosen)
        self.assertEqual((rc, j["pass"]), (0, True), said[-2000:])
        self.assertEqual(self.providers(j, "mla.decode"), {"dropin"})
        self.assertIn("dropin", self.providers(j, "quant"))
        decode, matmul = self.calls(said)
        self.assertGreater(decode, 0)
        self.assertGreater(matmul, decode)
        # Far nearer to ref than either is to the golden values; other sums give other last bits.
        self.assertLess(abs(j["max_abs"] - ref["max_abs"]), 1e-3)
        self.assertLess(abs(j["mean_kl"] - ref["mean_kl"]), 1e-5)
        for fault in ("decode", "matmul"):
            with self.subTest(fault=fault):
                rc, broken, said = self.verify(self.q8, golden, *limits, slots=chosen, plugin__dropin={"fault": fault})
                self.assertEqual((rc, broken["pass"]), (1, False), said[-2000:])
                self.assertGreater(broken["mean_kl"], 2 * ref["mean_kl"])
                self.assertNotEqual(broken["max_abs_logits"], j["max_abs_logits"])
                self.assertGreater(min(self.calls(said)), 0)

    def test_verify_says_who_computed(self):
        model, golden = zoo("v3")
        done = subprocess.run([self.program, "verify", "-m", model, "--golden", golden, "-s", "slots.mla.decode=dropin",
                               "-s", "kv.dtype=f32"], capture_output=True, text=True, check=True, timeout=600)
        self.assertEqual(done.stderr.splitlines()[-1:], ["backends: mla.decode dropin, else ref"])

    def test_not_named_not_used(self):
        # The same program and the same folder: where another is named, the plugin is not even opened.
        _, j, said = self.verify(*zoo("v3"), slots={"mla.decode": "ref", "quant": "ref"})
        self.assertEqual(self.providers(j, "mla.decode"), {"ref"})
        self.assertNotIn("dropin: calls", said)

    def test_bad_key_is_refused(self):
        ini = self.ini(slots={"mla.decode": "dropin"}, plugin__dropin={"fualt": "decode"})
        done = subprocess.run([self.program, "run", "-c", ini, "-m", zoo("v3")[0], "-p", "x", "-n", "1"],
                              capture_output=True, text=True, check=False, timeout=600)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("fault", done.stderr)

    def test_wrapper_counts(self):
        model, golden = zoo("v3")
        _, plain, _ = self.verify(model, golden, slots={"mla.decode": "simple"})
        rc, j, said = self.verify(model, golden, slots={"mla.decode": "simple"},
                                  wrap={"mla.decode": "count", "quant": "count"})
        self.assertEqual(rc, 0, said[-2000:])
        counts = re.findall(r"count: (mla.decode run|quant matmul): (\d+) calls, (\d+) failed", said)
        for what in ("mla.decode run", "quant matmul"):
            self.assertGreater(sum(int(n) for name, n, _ in counts if name == what), 0, said[-2000:])
        self.assertEqual({bad for _, _, bad in counts}, {"0"})
        self.assertEqual(j["max_abs"], plain["max_abs"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
