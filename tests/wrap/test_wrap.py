"""test_wrap.py - [wrap] through the real program: same numbers with and without wrappers, traces that add up, and
planted faults that check must name.

SPDX-License-Identifier: MIT
"""
import json
import os
import re
import shutil
import tempfile

from cli_case import ZOO, CliCase, main

def trusted_copies():
    """The plugins in a folder that nobody else can write: the build folder may belong to a group."""
    folder = tempfile.TemporaryDirectory(prefix="bp-wrap-")
    for source in os.environ["BP_PLUGINS"].split(":"):
        for name in os.listdir(source):
            if name.endswith(".so"):
                os.chmod(shutil.copyfile(os.path.join(source, name), os.path.join(folder.name, name)), 0o644)
    return folder


FOLDER = trusted_copies()  # removed when the program ends
PLUGINS = os.path.realpath(FOLDER.name)
SLOTS = ["device", "dense", "quant", "mla.common", "mla.prefill", "mla.decode", "mla.index", "moe", "coll"]
CALLS = re.compile(r"trace: (bp\.[a-z.]+): (.*)")


def model(name):
    return ["-m", os.path.join(ZOO, f"zoo-{name}.gguf"), "--golden", os.path.join(ZOO, f"zoo-{name}.golden.gguf"),
            "-s", "kv.dtype=f32"]


def settings(**keys):
    out = ["-s", f"engine.plugin_path={PLUGINS}"]
    for key, value in keys.items():
        out += ["-s", f"{key.replace('__', '.')}={value}"]
    return out


def wrap(chain, slots=SLOTS):
    return [x for slot in slots for x in ("-s", f"wrap.{slot}={chain}")]


class Wrap(CliCase):
    def verify(self, name, *args):
        """The numbers alone: timings and names differ from run to run."""
        result = self.good("verify", *model(name), "--json", *args)
        j = result.json()
        self.assertTrue(j["prompts"])
        return result, {k: j[k] for k in ("prompts", "max_abs", "pass")}

    def traced(self, *args, name="glm5", out="t.json"):
        path = os.path.join(self.tmp, out)
        result, numbers = self.verify(name, *settings(engine__log="info", plugin__trace__out=path), *args)
        with open(path, encoding="utf-8") as f:
            return json.load(f), result.err.decode(), numbers

    # ---- the same bits ----

    def test_same_numbers_in_wrappers(self):
        for name, mode in (("glm5", "whole"), ("glm5", "chunk:7"), ("v2lite", "chunk:16"), ("v3", "step"),
                           ("glm52-shared", "whole")):
            with self.subTest(model=name, mode=mode):
                plain = self.verify(name, "--mode", mode)[1]
                for chain, slots in (("trace, check", ["mla.decode"]), ("check, trace", SLOTS), ("check", SLOTS)):
                    wrapped = self.verify(name, "--mode", mode, *settings(plugin__trace__out=""), *wrap(chain, slots))[1]
                    self.assertEqual(wrapped, plain)

    def test_some_layers_only(self):
        plain = self.verify("glm5")[1]
        trace, _, numbers = self.traced("-s", "wrap.mla.decode@layers=1-2=trace")
        self.assertEqual(numbers, plain)
        layers = {e["args"]["layer"] for e in trace["traceEvents"] if e["name"] == "bp.mla.decode.run"}
        self.assertEqual(layers, {1, 2})

    # ---- trace ----

    def test_as_many_spans_as_calls(self):
        # With auto a CUDA plugin would be asked for its device too, and where there is none that call fails.
        trace, log, _ = self.traced(*wrap("trace"), *settings(engine__device="cpu"))
        want = {}
        for iface, parts in CALLS.findall(log):
            for slot, n in re.findall(r"(\w+) (\d+) calls", parts):
                want[f"{iface}.{slot}"] = want.get(f"{iface}.{slot}", 0) + int(n)
        got = {}
        for e in trace["traceEvents"]:
            got[e["name"]] = got.get(e["name"], 0) + 1
            self.assertEqual((e["ph"], e["cat"], e["args"]["status"]), ("X", e["name"].rpartition(".")[0], 0))
            self.assertGreaterEqual(e["dur"], 0)
            self.assertGreater(e["ts"], 0)
            self.assertNotIn("tensors", e["args"])
        self.assertEqual(got, want)
        self.assertEqual(trace["otherData"]["dropped"], 0)
        self.assertIn(f"{sum(want.values())} spans written to", log)
        # Independent of the trace's own counting: layers of the model, one release for each prepare, all memory freed.
        self.assertEqual(got["bp.moe.prepare"], got["bp.moe.release"])
        self.assertEqual(got["bp.device.alloc"], got["bp.device.free"])
        self.assertEqual(got["bp.mla.decode.run"], got["bp.mla.common.cache_write"])
        for name in ("bp.coll.comm_create", "bp.coll.comm_destroy", "bp.dense.embed", "bp.dense.rope", "bp.quant.matmul",
                     "bp.mla.index.select", "bp.mla.common.absorb", "bp.moe.route", "bp.device.copy"):
            self.assertIn(name, got)

    def test_correlation_ids(self):
        """Every call of a step has an id of its own: the step's number above the call's, both counted from 1."""
        trace, _, _ = self.traced(*wrap("trace"))
        ids = {}
        for e in trace["traceEvents"]:
            if e["args"]["corr"] != 0:
                ids.setdefault(e["args"]["corr"], []).append(e)
            else:  # questions and weights at start-up, and the device, which belong to no step
                self.assertNotRegex(e["name"], r"\.(run|plan|matmul|rms|rope|embed|route|select|absorb|cache_write)$")
        for corr, events in ids.items():
            names = sorted(e["name"] for e in events)
            self.assertTrue(len(names) == 1 or (len(names) == 2 and names[0].replace(".plan", ".run") == names[1]), names)
        steps = sorted({corr >> 24 for corr in ids})
        self.assertGreater(len(steps), 1)
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        for step in steps:
            calls = sorted(corr & 0xffffff for corr in ids if corr >> 24 == step)
            self.assertEqual(calls, list(range(1, len(calls) + 1)))
        # In the order of time, they only grow.
        timed = [e["args"]["corr"] for e in sorted(trace["traceEvents"], key=lambda e: e["ts"]) if e["args"]["corr"] != 0]
        self.assertEqual(timed, sorted(timed))

    def test_spans_agree_with_check(self):
        trace, log, _ = self.traced(*wrap("trace, check", ["mla.decode"]))
        runs = sum(e["name"] == "bp.mla.decode.run" for e in trace["traceEvents"])
        self.assertGreater(runs, 10)
        self.assertIn(f"check: bp.mla.decode: {runs} calls, {runs} outputs looked at, {runs} in guarded memory", log)

    def test_ring_is_bounded(self):
        every, _, _ = self.traced(*wrap("trace", ["mla.decode"]), out="a.json")
        few, log, _ = self.traced(*wrap("trace", ["mla.decode"]), "-s", "plugin.trace.events=5", out="b.json")
        names = [(e["name"], e["args"]["layer"]) for e in every["traceEvents"]]
        self.assertEqual([(e["name"], e["args"]["layer"]) for e in few["traceEvents"]], names[-5:])
        self.assertEqual(few["otherData"]["dropped"], len(names) - 5)
        self.assertIn(f"{len(names) - 5} older ones did not fit", log)

    def test_shapes(self):
        trace, _, _ = self.traced(*wrap("trace", ["mla.decode", "quant"]), "-s", "plugin.trace.shapes=yes")
        runs = [e["args"]["tensors"] for e in trace["traceEvents"] if e["name"] == "bp.mla.decode.run"]
        for tensors in runs:
            ports = {t["name"]: t for t in tensors}
            self.assertEqual((ports["q"]["access"], ports["out"]["access"], ports["pool"]["dtype"]), ("in", "out", "u8"))
            self.assertEqual(ports["q"]["shape"][0], ports["out"]["shape"][0])
            self.assertEqual(len(ports["out"]["shape"]), 3)

    def test_file_of_a_trace(self):
        self.verify("v3", *settings(plugin__trace__out=""), *wrap("trace"))
        self.assertEqual(os.listdir(self.tmp), [])
        missing = os.path.join(self.tmp, "no", "t.json")
        self.refused("verify", *model("v3"), *settings(plugin__trace__out=missing), *wrap("trace"),
                     says=[missing, "folder does not exist"])
        self.refused("verify", *model("v3"), *settings(plugin__trace__events="0"), *wrap("trace"), says=["events"])
        # A run that fails in the middle still leaves a whole trace, and nothing beside it.
        path = os.path.join(self.tmp, "t.json")
        self.planted("nan", "trace, check, plant", extra=["-s", f"plugin.trace.out={path}"])
        self.assertEqual(os.listdir(self.tmp), ["t.json"])
        with open(path, encoding="utf-8") as f:
            last = [e for e in json.load(f)["traceEvents"]][-1]
        self.assertEqual((last["name"], last["args"]["layer"], last["args"]["status"]), ("bp.mla.decode.run", 2, -14))

    def test_a_trace_replaces_only_traces(self):
        at = lambda name: os.path.join(self.tmp, name)
        keep = b"GGUF, or anything else that is dear to somebody"
        with open(at("file"), "wb") as f:
            f.write(keep)
        with open(at("foreign"), "wb") as f:
            f.write(b'{"traceEvents":[]}')  # as another program writes it
        os.symlink("file", at("link"))
        os.link(at("file"), at("hard"))
        os.symlink("nothing", at("dangling"))
        os.mkdir(at("folder"))
        os.mkfifo(at("pipe"))
        names = sorted(os.listdir(self.tmp))
        for name in names:
            with self.subTest(name=name):
                self.refused("verify", *model("v3"), *settings(plugin__trace__out=at(name)), *wrap("trace"),
                             says=[at(name), "cannot be read" if name == "dangling" else "no earlier trace", "not replaced"])
        self.assertEqual(sorted(os.listdir(self.tmp)), names)
        self.assertTrue(os.path.samefile(at("file"), at("hard")) and os.path.islink(at("link")) and
                        os.path.islink(at("dangling")))
        with open(at("file"), "rb") as f:
            self.assertEqual(f.read(), keep)
        # What it made itself gives way, and so does a file without a byte; a link to a trace gives way itself.
        open(at("empty"), "wb").close()
        for _ in range(2):
            few = self.traced(*wrap("trace", ["mla.decode"]), out="empty")[0]
        os.symlink("empty", at("latest"))
        more = self.traced(*wrap("trace"), out="latest")[0]
        self.assertFalse(os.path.islink(at("latest")))
        self.assertGreater(len(more["traceEvents"]), len(few["traceEvents"]))
        with open(at("empty"), encoding="utf-8") as f:
            self.assertEqual(json.load(f), few)

    # ---- check ----

    def planted(self, fault, chain="check, plant", slot="mla.decode", layer=2, row=3, status=3, says=(), extra=()):
        return self.refused("verify", *model("glm5"), *settings(plugin__trace__out=""), *wrap(chain, [slot]),
                            "-s", f"plugin.plant.fault={fault}", "-s", f"plugin.plant.layer={layer}",
                            "-s", f"plugin.plant.row={row}", *extra, status=status, says=says)

    def test_nothing_planted_nothing_found(self):
        plain = self.verify("glm5")[1]
        for slot in ("mla.decode", "quant"):
            self.assertEqual(self.verify("glm5", *settings(), *wrap("check, plant", [slot]))[1], plain)

    def test_nan_is_named(self):
        self.planted("nan", says=["layer 2", "bp.mla.decode.run", "output out row 3", "NaN", "inputs were finite"])
        self.planted("inf", says=["layer 2", "bp.mla.decode.run", "output out row 3", "-inf"])
        self.planted("nan", slot="quant", layer=1, says=["layer 1", "bp.quant.matmul", "row 3", "NaN"])

    def test_nan_that_came_in_is_not_charged_to_the_op(self):
        self.planted("nan", chain="plant", says=["bp.mla.common.absorb", "layer 2", "it came in", "input x row 3"],
                     extra=wrap("check", ["mla.common"]))

    def test_first_layer_is_named(self):
        """check around everything: the op that made it, not one of the many that inherit it."""
        self.planted("nan", chain="check, plant", says=["layer 0", "bp.mla.decode.run"], layer=0,
                     extra=wrap("check", [s for s in SLOTS if s != "mla.decode"]))

    def test_stray_writes_are_named(self):
        for slot, op, port in (("mla.decode", "bp.mla.decode.run", "out"), ("quant", "bp.quant.matmul", "y")):
            self.planted("behind", slot=slot, says=["layer 2", op, f"behind the end of output {port}"])
            self.planted("last", slot=slot, says=["layer 2", op, f"behind the end of output {port}"])
            self.planted("before", slot=slot, says=["layer 2", op, f"before the begin of output {port}"])

    def test_changed_input(self):
        self.planted("input", says=["layer 2", "bp.mla.decode.run", "input q was changed"])
        loose = self.verify("glm5", *settings(plugin__check__inputs="no"), *wrap("check, plant", ["mla.decode"]),
                            "-s", "plugin.plant.fault=none")
        self.assertTrue(loose[1]["pass"])

    def test_unwritten_output(self):
        self.planted("unwritten", says=["layer 2", "bp.mla.decode.run", "output out row 0", "NaN"])

    # ---- names ----

    def test_refusals(self):
        for chain, says in (("trase", ["trase", "trace"]), ("ref", ["ref", "wraps nothing"]),
                            ("trace, plant", ["plant does not wrap bp.moe"])):
            self.refused("verify", *model("v3"), *settings(plugin__trace__out=""), *wrap(chain, ["moe"]), says=says)
        self.refused("verify", *model("v3"), *settings(slots__moe="check"), says=["check", "[wrap]"])


if __name__ == "__main__":
    main()
