"""test_ref.py - a reference backend with one fault, in one layer, is seen for what it is.

Each fault (ref_edits/faults.py) is a plugin of its own: a copy of the reference backend with one edit. It serves one
slot in one layer, drawn from a printed seed (BP_SEED repeats it); ref serves all the rest. A fault bites when `verify`
turns from PASS to FAIL and the hidden states in front of that layer are ref's to the last bit; the copy without an edit,
built in the same way, gives ref's bits everywhere. `ab` must then name that op in that layer and no other in shadow
mode, and say in free mode that the difference was made there and is inherited from there on.
BP_CLI, BP_BUILD and BP_SOURCE are set by CMake.
SPDX-License-Identifier: MIT
"""
import functools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

CLI, BUILD, SOURCE = (os.environ[name] for name in ("BP_CLI", "BP_BUILD", "BP_SOURCE"))
ZOO = os.path.join(SOURCE, "tests", "data", "zoo")

EDITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ref_edits")

sys.path.insert(0, os.path.join(SOURCE, "scripts", "lib"))
sys.path.insert(0, EDITS)
import gguf_edit as ge  # noqa: E402  (the path is known only now)
from faults import FAULTS  # noqa: E402

SEED = int(os.environ.get("BP_SEED") or random.SystemRandom().randrange(1 << 32))
SLOTS = ("dense", "quant", "moe", "mla.common", "mla.prefill", "mla.decode", "mla.index")
# Small blocks and slabs, so that short prompts have several. All slots are named, since auto might take a faulty copy.
COMMON = ["kv.dtype=f32", "kv.block=16", "engine.ctx=256", "engine.slab=64"] + [f"slots.{s}=ref" for s in SLOTS]
PROMPT = "The quick brown fox jumps over the lazy dog, and 0123456789 more of them follow it home at night."
# Where an op that writes no tap itself first shows in free mode; the others show in their own.
SHOWS = {("mla.prefill", "run_context"): ["attn.heads"], ("mla.common", "merge"): ["attn.heads"],
         ("mla.common", "cache_gather"): ["attn.heads"], ("mla.common", "expand"): ["attn.heads"],
         ("mla.common", "absorb"): ["attn.heads"], ("mla.common", "cache_write"): ["attn.o_lat", "attn.heads"],
         ("mla.index", "key_write"): ["index.ids"]}
EQUAL = "the sides are equal, bit for bit where they were compared"
HOW = {"whole": [], "chunk": ["-s", "engine.batch_tokens=16"], "step": ["--mode", "step"]}


def settings(pairs):
    return [arg for pair in pairs for arg in ("-s", pair)]


class Models:
    """Files of the zoo, and what faults need made from them."""

    def __init__(self, folder):
        self.folder = folder

    @staticmethod
    def zoo(name):
        return os.path.join(ZOO, f"zoo-{name}.gguf")

    @functools.lru_cache(maxsize=None)
    def path(self, name, quant, zero):
        path = self.zoo(name)
        if zero:
            model = ge.read(path)
            hit = [t for t in model.tensors if t.name.endswith(zero)]
            assert hit, f"no tensor of {name} ends in {zero}"
            for t in hit:
                t.data = bytes(len(t.data))
            path = os.path.join(self.folder, f"{name}-zero.gguf")
            ge.write(path, model)
        if quant:
            source, path = path, os.path.join(self.folder, f"{name}-{quant}.gguf")
            done = subprocess.run([CLI, "quantize", source, path, quant], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        return path

    @functools.lru_cache(maxsize=None)
    def layers(self, name, which):
        """Layers of the model that have the op at all."""
        model = ge.read(self.zoo(name))
        n, lead = model.get("block_count"), model.get("leading_dense_block_count")
        if which == "index":
            if model.key("attention.indexer.top_k") not in model.kv:
                return []
            types = model.kv.get(model.key("attention.indexer.types"))
            return [i for i in range(n) if types is None or types.value[i]]
        return {"all": list(range(n)), "moe": list(range(lead, n)), "dense": list(range(lead))}[which]


class FaultyRef(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="bp-faulty-")
        cls.addClassCleanup(folder.cleanup)
        cls.models = Models(folder.name)
        cls.plugins = os.path.join(folder.name, "plugins")
        os.mkdir(cls.plugins, 0o755)
        built = os.path.join(BUILD, "faulty_ref")
        for name in os.listdir(built):  # whatever the umask: others may not write to a plugin
            os.chmod(shutil.copy(os.path.join(built, name), cls.plugins), 0o755)
        draw = random.Random(SEED)
        cls.layer = {f.name: draw.choice(cls.models.layers(f.model, f.layers)) for f in FAULTS}
        print(f"seed {SEED}: " + ", ".join(f"{name} in layer {layer}" for name, layer in cls.layer.items()), flush=True)

    def run_cli(self, *args):
        done = subprocess.run([CLI, *args], capture_output=True, text=True, check=False, timeout=120)
        shown = f"\n{' '.join([CLI, *args])}\nexit {done.returncode}\n{done.stdout[-600:]}\n{done.stderr[-1500:]}"
        return done.returncode, done.stdout, done.stderr, shown

    def verify(self, model, golden, how, *more):
        """(exit status, JSON or None, the sentence, the command with what it said)"""
        rc, out, err, shown = self.run_cli(
            "verify", "-m", model, "--golden", os.path.join(ZOO, f"zoo-{golden}.golden.gguf"), "--json",
            *settings(COMMON + [f"engine.plugin_path={self.plugins}"]), *HOW[how], *settings(more))
        self.assertIn(rc, (0, 1, 3), shown)
        return rc, json.loads(out) if rc in (0, 1) else None, err, shown

    @functools.lru_cache(maxsize=None)
    def right(self, model, quant, zero, how, *more):
        """What ref itself gives. The files of the zoo, untouched, pass."""
        rc, result, _, shown = self.verify(self.models.path(model, quant, zero), model, how, *more)
        self.assertIsNotNone(result, shown)
        self.assertTrue(quant or zero or (rc == 0 and result["pass"] is True), shown)
        return result

    def hidden(self, result):
        return [p["hidden_max_abs"] for p in result["prompts"]]

    # ---- the plugins themselves ----

    def test_a_fault_that_core_outgrew_stops_the_build(self):
        fault = FAULTS[0]
        with open(os.path.join(SOURCE, "core", fault.file), encoding="utf-8") as f:
            text = f.read()
        for times, copy in ((1, text), (0, text.replace(fault.old, "")), (2, text + fault.old)):
            with tempfile.TemporaryDirectory() as folder:
                path, output = os.path.join(folder, fault.file), os.path.join(folder, "out.c")
                os.makedirs(os.path.dirname(path))
                with open(path, "w", encoding="utf-8") as f:
                    f.write(copy)
                script = os.path.join(EDITS, "edit.py")
                done = subprocess.run([sys.executable, "-B", script, fault.name, folder, output], capture_output=True,
                                      text=True, check=False)
                self.assertEqual((done.returncode == 0, os.path.exists(output)), (times == 1, times == 1), done.stderr)
                self.assertEqual(f"stands {times} times" in done.stderr, times != 1, done.stderr)

    def test_the_unedited_copy_is_ref(self):
        cases = sorted({(f.model, f.quant, f.zero, f.how) for f in FAULTS})
        for model, quant, zero, how in cases:
            with self.subTest(model=model, how=how):
                right = self.right(model, quant, zero, how)
                rc, copy, _, shown = self.verify(self.models.path(model, quant, zero), model, how,
                                                 *[f"slots.{s}=unedited_ref" for s in SLOTS])
                self.assertIsNotNone(copy, shown)
                served = {s["slot"] for s in copy["backends"]["slots"] if s["provider"] == "unedited_ref"}
                self.assertGreaterEqual(served, {"dense", "quant", "moe", "mla.common"}, shown)
                for result in (right, copy):
                    self.assertNotIn("NaN", json.dumps(result))
                for key in right:
                    if key != "backends":
                        self.assertEqual(copy[key], right[key], f"{key} differs{shown}")

    def test_a_wrapper_that_pads_changes_nothing(self):
        for fault in FAULTS:
            if fault.wrap:
                right = self.right(fault.model, "", "", fault.how)
                padded = self.right(fault.model, "", "", fault.how, f"wrap.{fault.slot}={fault.wrap}")
                self.assertEqual(padded["prompts"], right["prompts"])

    def test_every_fault_bites_in_its_layer(self):
        self.assertGreaterEqual(len({f.name for f in FAULTS}), 20)
        for fault in FAULTS:
            with self.subTest(fault=fault.name):
                self.bites(fault, self.layer[fault.name])

    def placed(self, fault, layer):
        return f"slots.{fault.slot}@layers={layer}=faulty_{fault.name}"

    def around(self, fault):
        return [f"wrap.{fault.slot}={fault.wrap}"] if fault.wrap else []

    def bites(self, fault, layer):
        right = self.right(fault.model, fault.quant, fault.zero, fault.how, *self.around(fault))
        rc, wrong, said, shown = self.verify(self.models.path(fault.model, fault.quant, fault.zero), fault.model,
                                             fault.how, *self.around(fault), self.placed(fault, layer))
        if "nan" in fault.name:
            self.assertEqual(rc, 3, shown)
            self.assertIn(f"blk.{layer}.", said, shown)
            return
        if fault.batch > 1:
            self.assertEqual((rc, wrong["prompts"]), (0, right["prompts"]), shown)
            return
        self.assertEqual((rc, wrong and wrong["pass"]), (1, False), shown)
        served = [s["layers"] for s in wrong["backends"]["slots"] if s["provider"] == f"faulty_{fault.name}"]
        self.assertEqual(served, [f"{layer}-{layer}"], shown)
        changed = set()
        for mine, refs in zip(self.hidden(wrong), self.hidden(right)):
            self.assertEqual(mine[:layer + 1], refs[:layer + 1], f"layers before {layer} differ{shown}")
            changed.add(mine[layer + 1] != refs[layer + 1])
        self.assertIn(True, changed, f"the hidden states behind layer {layer} are ref's{shown}")

    # ---- what names them: backplane ab ----

    def ab(self, fault, mode, *more):
        """A is ref, B is ref with the fault in its layer, or with `more`."""
        model = self.models.path(fault.model, fault.quant, fault.zero)
        rc, out, err, shown = self.run_cli(
            "ab", "-m", model, "-p", PROMPT, "-n", "24" if fault.how == "step" else "0", "--mode", mode, "--json",
            *settings(COMMON + [f"engine.plugin_path={self.plugins}"] + self.around(fault)),
            *(HOW[fault.how] if fault.how == "chunk" else []), *more,
            *(["--a", f"batch={fault.batch}", "--b", f"batch={fault.batch}"] if fault.batch > 1 else []))
        self.assertIn(rc, (0, 1, 3), shown)
        result = json.loads(out) if rc in (0, 1) else None
        self.assertTrue(result is None or result["verdict"]["pass"] == (rc == 0), shown)
        return result, err, shown

    def reached(self, fault):
        """The slots that a run of this fault's kind calls; `ab` passes no slot that it never saw. With an index a prompt
        goes through both forms of attention; without one, the decode form is for tokens that come one by one."""
        if self.models.layers(fault.model, "index"):
            return set(SLOTS)
        return set(SLOTS) - ({"mla.index"} if fault.how == "step" else {"mla.index", "mla.decode"})

    def test_ab_finds_nothing_in_the_unedited_copy(self):
        for model, how in sorted({(f.model, f.how) for f in FAULTS}):
            with self.subTest(model=model, how=how):
                fault = next(f for f in FAULTS if (f.model, f.how) == (model, how))
                called = self.reached(fault)
                for mode in ("shadow", "free") if fault.batch == 1 else ("free",):
                    result, _, shown = self.ab(fault, mode, *[arg for s in sorted(called)
                                                           for arg in ("--b", f"slots.{s}=unedited_ref")])
                    self.assertEqual((result["verdict"]["pass"], result["verdict"]["text"]), (True, EQUAL), shown)
                    if mode == "shadow":
                        self.assertEqual({o["slot"] for o in result["ops"]}, called, shown)
                    self.assertIsNone(result["first_difference"], shown)
                    self.assertEqual({(o["max_abs"], o["status"]) for o in result["ops"]}, {(0, "ok")}, shown)

    def test_a_slot_that_nothing_calls_is_told(self):
        fault = next(f for f in FAULTS if f.slot == "mla.decode" and f.batch == 1)
        for n, told in ((0, True), (2, False)):
            rc, out, _, shown = self.run_cli(
                "ab", "-m", self.models.path("v3", None, None), "--ids", "1,2,3,4", "-n", str(n),
                *settings(COMMON + [f"engine.plugin_path={self.plugins}"]), "--b", self.placed(fault, 1))
            said = f"mla.decode, for which A has ref and B has faulty_{fault.name}, was never called" in out
            self.assertEqual((said, rc), (told, 1), shown)

    def test_shadow_names_exactly_the_faulty_op(self):
        for fault in FAULTS:
            with self.subTest(fault=fault.name):
                self.named(fault, self.layer[fault.name])

    def named(self, fault, layer):
        if fault.batch > 1:
            return
        result, _, shown = self.ab(fault, "shadow", "--b", self.placed(fault, layer))
        guilty = (fault.slot, fault.op, layer)
        named = {(o["slot"], o["op"], o["layer"]) for o in result["ops"] if o["status"] != "ok"}
        self.assertEqual(named, {guilty}, shown)
        touched = {(o["slot"], o["op"], o["layer"]) for o in result["ops"] if o["max_abs"] != 0}
        self.assertLessEqual(touched, {guilty}, f"an op that is ref's on both sides differs{shown}")
        first = result["first_difference"]
        self.assertEqual((first["slot"], first["op"], first["layer"]), guilty, shown)
        self.assertEqual((first["status"], result["verdict"]["pass"]), self.judgement(fault), shown)

    def judgement(self, fault):
        """A choice between exact equals is told and fails nothing."""
        return ("flip", True) if fault.tie else ("fail", False)

    def test_free_says_where_it_was_made_and_inherited(self):
        for fault in FAULTS:
            with self.subTest(fault=fault.name):
                self.made_and_inherited(fault, self.layer[fault.name])

    def made_and_inherited(self, fault, layer):
        result, _, shown = self.ab(fault, "free", "--b", self.placed(fault, layer))
        if "nan" in fault.name:  # B's run ends there
            text = result["verdict"]["text"]
            self.assertFalse(result["verdict"]["pass"], shown)
            self.assertIn("side B", text, shown)
            self.assertIn(f"blk.{layer}.", text, shown)
            return
        first, ops = result["first_difference"], result["ops"]
        self.assertEqual((first["layer"], first["made_here"]), (layer, True), shown)
        self.assertEqual((first["status"], result["verdict"]["pass"]), self.judgement(fault), shown)
        if (fault.slot, fault.op) in SHOWS:
            self.assertIn(first["tap"], [f"blk.{layer}.{tap}" for tap in SHOWS[fault.slot, fault.op]], shown)
        else:
            self.assertEqual((first["slot"], first["op"]), (fault.slot, fault.op), shown)
        at = next(i for i, o in enumerate(ops) if o["tap"] == first["tap"])
        for o in ops[:at]:
            self.assertEqual((o["status"], o["max_abs"], o["skipped"]), ("ok", 0, 0), f"{o['tap']}{shown}")
        # From there on every tap differs, or says nothing, being behind a choice that differs already.
        for o in ops[at + 1:]:
            self.assertTrue(not o["made_here"] or o["status"] == "ok", f"{o['tap']}{shown}")
        last = next(o for o in ops if o["tap"] == "logits")
        self.assertTrue(last["skipped"] > 0 or (last["status"], last["made_here"]) == ("fail", False), shown)


if __name__ == "__main__":
    unittest.main(verbosity=2)
