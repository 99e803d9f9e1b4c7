"""test_ref.py - a reference backend with one fault, in one layer, is seen for what it is.

Each fault (ref_edits/faults.py) is a plugin of its own: a copy of the reference backend with one edit. It serves one slot
in one layer, drawn from a printed seed (BP_SEED repeats it); ref serves all the rest. A fault bites when `verify` turns
from PASS to FAIL and the hidden states in front of that layer are ref's to the last bit; the copy without an edit, built
in the same way, gives ref's bits everywhere. What finds faults is held against exactly these plugins.
Under sanitizers five faults are drawn. BP_CLI, BP_BUILD and BP_SOURCE are set by CMake.
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
SANITIZED = os.environ.get("BP_SANITIZE", "") != ""
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
        cls.faults = draw.sample(FAULTS, 5) if SANITIZED else list(FAULTS)
        cls.layer = {f.name: draw.choice(cls.models.layers(f.model, f.layers)) for f in cls.faults}
        print(f"seed {SEED}: " + ", ".join(f"{f.name} in layer {cls.layer[f.name]}" for f in cls.faults), flush=True)

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
                done = subprocess.run([sys.executable, "-B", os.path.join(EDITS, "edit.py"), fault.name, folder, output],
                                      capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode == 0, os.path.exists(output)), (times == 1, times == 1), done.stderr)
                self.assertEqual(f"stands {times} times" in done.stderr, times != 1, done.stderr)

    def test_the_unedited_copy_is_ref(self):
        cases = sorted({(f.model, f.quant, f.zero, f.how) for f in self.faults})
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
        for fault in self.faults:
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
        self.assertEqual((rc, wrong and wrong["pass"]), (1, False), shown)
        served = [s["layers"] for s in wrong["backends"]["slots"] if s["provider"] == f"faulty_{fault.name}"]
        self.assertEqual(served, [f"{layer}-{layer}"], shown)
        changed = set()
        for mine, refs in zip(self.hidden(wrong), self.hidden(right)):
            self.assertEqual(mine[:layer + 1], refs[:layer + 1], f"layers before {layer} differ{shown}")
            changed.add(mine[layer + 1] != refs[layer + 1])
        self.assertIn(True, changed, f"the hidden states behind layer {layer} are ref's{shown}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
