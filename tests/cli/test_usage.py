"""test_usage.py - options, help, version, configuration: what never opens a model.

SPDX-License-Identifier: MIT
"""
import re
import subprocess

from cli_case import CLI, CliCase, main, run

COMMANDS = ["run", "verify", "tokenize", "detokenize", "inspect", "ppl", "quantize", "config", "plugins"]


class Usage(CliCase):
    def test_no_command_is_usage(self):
        r = run()
        self.assertEqual((r.rc, r.out), (2, b""), r)
        self.assertIn(b"usage:", r.err)

    def test_unknown_command(self):
        self.refused("rnu", says="did you mean 'run'?", code="E_ARG")
        self.refused("tokenise", says="did you mean 'tokenize'?")
        self.refused("zzzzzz", says="backplane help")
        self.refused("help", "veryfy", says="did you mean 'verify'?")

    def test_unknown_option(self):
        self.refused("run", "--tmp", "1", says="did you mean --temp?", code="E_ARG")
        self.refused("run", "-Q", says="--help")
        self.refused("ppl", "--chnks=3", says="did you mean --chunk")

    def test_values(self):
        self.refused("run", "-n", says="needs a value")
        self.refused("run", "--json=1", says="takes no value")
        for bad in ("0", "-1", "x", "3x", "", " 3", "1e3", "2147483648", "99999999999999999999"):
            self.refused("run", "-p", "x", f"--tokens={bad}", says="-n, --tokens takes an integer from 1")
        self.refused("run", "-p", "x", "-n0", says="-n, --tokens")
        self.refused("run", "-p", "x", "--logprobs", "-1", says="--logprobs")
        self.refused("run", "-p", "x", "stray", says="'stray' is one argument too many")
        self.refused("verify", "--golden", "x", "--max-abs", "nan", says="--max-abs takes a number")
        self.refused("verify", "--golden", "x", "--max-abs", "-1", says="--max-abs takes a number")

    def test_sampling_options_have_the_ranges_of_the_configuration(self):
        for option, bad in (("--temp", "-1"), ("--temp", "hot"), ("--temp", "nan"), ("--top-k", "-1"),
                            ("--top-p", "1.5"), ("--min-p", "-0.1"), ("--repeat-penalty", "0"), ("--seed", "-3"),
                            ("--seed", "1.5")):
            self.refused("run", "-p", "x", option, bad, says=(option, bad), code="E_ARG")

    def test_contradictions(self):
        self.refused("run", "-p", "x", "-f", "y", says="one place only")
        self.refused("run", "-i", "--json", says="choose one")
        self.refused("run", "-p", "x", "--system", "s", says="--system needs --chat")
        self.refused("run", "-p", "x", "--chat", "--special", says="--special")
        self.refused("verify", says="--golden FILE")
        for mode in ("foo", "chunk", "chunk:", "chunk:0", "chunk:x", "chunk:-1", "chunk:1x"):
            self.refused("verify", "--golden", "x", "--mode", mode, says="--mode is whole, step, or chunk:K")
        self.refused("inspect", "--names", "gguf", "x", says="'hf' only")

    def test_help(self):
        r = self.good("--help")
        for name in COMMANDS:
            self.assertIn(name.encode(), r.out)
        self.assertEqual(self.good("help").out, r.out)
        for name in COMMANDS:
            h = self.good(name, "--help")
            self.assertEqual(h.err, b"")
            self.assertEqual(self.good("help", name).out, h.out)
            self.assertIn(b"exit status", h.out)
            self.assertIn(b"--json", h.out)
            self.assertLessEqual(max(len(line) for line in h.out.decode().split("\n")), 100, name)

    def test_version(self):
        self.assertRegex(self.good("--version").out.decode(), r"^backplane \d+\.\d+\.\d+\n$")
        self.assertRegex(self.good_json("--version")["version"], r"^\d+\.\d+\.\d+$")


class Config(CliCase):
    def test_lists_every_key(self):
        keys = self.good_json("config")["keys"]
        names = {f"{k['section']}.{k['key']}" for k in keys}
        self.assertEqual(len(names), len(keys))
        self.assertLessEqual({"engine.ctx", "kv.dtype", "slots.moe", "sample.temp", "plugin.ref.round"}, names)
        for k in keys:
            self.assertEqual(set(k), {"section", "key", "value", "origin", "default", "type", "range", "doc"})
            self.assertTrue(k["doc"] and k["type"], k)
            self.assertEqual((k["origin"], k["value"]), ("default", k["default"]), k)
        text = self.good("config").out.decode()
        for name in names:
            self.assertRegex(text, rf"(?m)^{re.escape(name)} = ")

    def test_order_of_sources(self):
        ini = self.file("a.ini", b"[kv]\ndtype = f16\n[engine]\nctx = 77\n")
        keys = {f"{k['section']}.{k['key']}": k
                for k in self.good_json("config", "-c", ini, "-s", "kv.dtype=f32", "-s", "kv.dtype=bf16")["keys"]}
        self.assertEqual(keys["kv.dtype"]["value"], "bf16")
        self.assertEqual(keys["engine.ctx"]["value"], "77")
        self.assertIn("a.ini:4", keys["engine.ctx"]["origin"])
        self.assertEqual(keys["kv.block"]["origin"], "default")

    def test_layers_of_a_slot_are_listed(self):
        keys = self.good_json("config", "-s", "slots.moe@layers=0-2=ref")["keys"]
        self.assertIn(("slots", "moe@layers=0-2", "ref"), {(k["section"], k["key"], k["value"]) for k in keys})

    def test_explain(self):
        keys = self.good_json("config", "--explain", "kv.dtype")["keys"]
        self.assertEqual([(k["section"], k["key"], k["range"]) for k in keys], [("kv", "dtype", "auto|f32|bf16|f16")])
        self.assertIn(b"range:", self.good("config", "--explain", "kv.dtype").out)
        self.refused("config", "--explain", "kv.dtyp", says="did you mean 'kv.dtype'?")
        self.refused("config", "--explain", "dtype", says="did you mean 'kv.dtype'?")
        self.refused("config", "--explain", "no.such.key.at.all", says="lists all keys")

    def test_bad_ini(self):
        cases = [(b"[engine]\nctxx = 5\n", ("a.ini:2", "ctx")), (b"[engin]\nctx = 5\n", ("a.ini", "engine")),
                 (b"[engine]\nctx = lots\n", ("a.ini:2", "integer")), (b"[engine]\nctx = 5\nctx = 6\n", ("a.ini:3",)),
                 (b"[engine\n", ("a.ini:1",)), (b"just text\n", ("a.ini:1",))]
        for text, says in cases:
            self.refused("config", "-c", self.file("a.ini", text), says=says, code="E_CONFIG")
        self.refused("config", "-c", self.tmp, says="directory", code="E_IO")
        self.refused("config", "-c", self.tmp + "/none.ini", says="none.ini", code="E_IO")
        self.refused("config", "-s", "kv.dtyp=f32", says="did you mean dtype?", code="E_CONFIG")
        self.refused("config", "-s", "nonsense", code="E_CONFIG")

    def test_full_disk_is_a_failure(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([CLI, "config"], stdout=full, stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 3)
        self.assertIn(b"standard output cannot be written", done.stderr)


if __name__ == "__main__":
    main()
