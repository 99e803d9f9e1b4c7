"""quantize.py - quantizing a trained model, seen from outside: what Python's gguf package reads back, and perplexity.

Usage: quantize.py BACKPLANE DECODE SOURCE OUT [--sanitized]
1. zoo models to every type: the package reads the same names, shapes and types, its dequantised values equal those that
   DECODE (our decoders) gives, and they are as near to the source as the type allows.
2. bp-tiny-deepseek2-BF16 to Q4_K_M: its perplexity on a part of the text differs from that of the published Q4_K_M file by
   at most 1.5 %; under sanitizers only the sizes are compared. Both files are found through BP_MODELS.
Exit: 0 all is well, 1 not, 77 neither part could run, or the second could not (reason printed).
SPDX-License-Identifier: MIT
"""
import json
import os
import shutil
import subprocess
import sys

TYPES = {  # name: largest RMS error relative to the RMS of the values; generous, for random weights
    "F32": 0.0, "BF16": 0.0, "F16": 1e-3, "Q8_0": 0.01, "Q6_K": 0.03, "Q5_0": 0.06, "Q5_1": 0.06, "Q5_K": 0.05, "Q4_0": 0.12,
    "Q4_1": 0.1, "Q4_K": 0.1, "IQ4_NL": 0.1, "IQ4_XS": 0.1, "Q3_K": 0.2, "Q2_K": 0.4, "Q4_K_M": 0.1, "Q5_K_M": 0.06,
}
ZOO = ("zoo-glm5-512", "zoo-v3", "zoo-v2lite")
CHUNKS, MAX_PPL = 24, 0.015


def run(*args):
    done = subprocess.run(args, capture_output=True, text=True, errors="replace", timeout=1200, check=False)
    if done.returncode != 0:
        sys.exit(f"FAIL: {' '.join(args)}: exit {done.returncode}: {done.stderr}")
    return done.stdout


class Values:
    """What the package makes of a file's tensors."""

    def __init__(self, path):
        import gguf
        import numpy as np
        self.np, self.reader, self.decode = np, gguf.GGUFReader(path), gguf.quants.dequantize
        self.by_name = {t.name: t for t in self.reader.tensors}

    def of(self, t):
        with self.np.errstate(all="ignore"):
            return self.decode(t.data, t.tensor_type).astype(self.np.float32).reshape(-1)


def check_tensors(driver, source, path, kind, plan):
    """Number of tensors compared."""
    before, after = Values(source), Values(path)
    np = before.np
    if [t.name for t in after.reader.tensors] != [t["name"] for t in plan["tensors"]]:
        sys.exit(f"FAIL: {path}: other tensors than planned")
    decoded, at = np.fromfile(driver.decoded(path), dtype=np.float32), 0
    for row, t in zip(plan["tensors"], after.reader.tensors):
        old = before.by_name[t.name]
        if list(old.shape) != list(t.shape) or t.tensor_type.name != row["to"] or old.tensor_type.name != row["from"]:
            sys.exit(f"FAIL: {path}: {t.name} is {t.shape} {t.tensor_type.name}, planned {row} of {old.shape}")
        theirs, wanted = after.of(t), before.of(old)
        ours, at = decoded[at:at + len(theirs)], at + len(theirs)
        if not np.array_equal(ours, theirs):  # unequal for NaN
            sys.exit(f"FAIL: {path}: {t.name} of type {row['to']}: the package decodes other values")
        size = float(np.sqrt(np.mean(np.square(wanted, dtype=np.float64))))
        error = float(np.sqrt(np.mean(np.square(theirs.astype(np.float64) - wanted))))
        limit = TYPES[kind] * size + (0.0 if TYPES[kind] == 0.0 else 1e-12)
        if not error <= limit:
            sys.exit(f"FAIL: {path}: {t.name} as {row['to']}: RMS error {error:.3g}, values {size:.3g}, limit {limit:.3g}")
    if at != len(decoded) or at == 0:
        sys.exit(f"FAIL: {path}: {len(decoded)} values decoded, {at} compared")
    return len(plan["tensors"])


class Driver:
    def __init__(self, backplane, decode, source, out):
        self.backplane, self.decode, self.source, self.out = backplane, decode, source, out
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)

    def decoded(self, path):
        values = os.path.join(self.out, "values.f32")
        run(self.decode, path, values)
        return values

    def quantize(self, source, kind):
        path = os.path.join(self.out, f"{kind}.gguf")
        plan = json.loads(run(self.backplane, "quantize", source, path, kind, "--json"))
        return path, plan

    def read_back(self, sanitized):
        n = 0
        for model in ZOO[:1] if sanitized else ZOO:
            source = os.path.join(self.source, "tests", "data", "zoo", model + ".gguf")
            for kind in TYPES:
                path, plan = self.quantize(source, kind)
                n += check_tensors(self, source, path, kind, plan)
        print(f"{n} tensors are read by the package as they were written")

    def model(self, name):
        for folder in (os.environ.get("BP_MODELS", ""), os.path.join(self.source, "..", "shared", "models")):
            if folder and os.path.isfile(os.path.join(folder, name)):
                return os.path.join(folder, name)
        return None

    def perplexity(self, sanitized):
        """None, or why it cannot be measured."""
        names = ("bp-tiny-deepseek2-BF16.gguf", "bp-tiny-deepseek2-Q4_K_M.gguf")
        source, published = (self.model(name) for name in names)
        for name, path in zip(names, (source, published)):
            if path is None:
                return f"{name} not found; set BP_MODELS to the folder that holds it"
        path, _ = self.quantize(source, "Q4_K_M")
        if os.path.getsize(path) != os.path.getsize(published):
            sys.exit(f"FAIL: {os.path.getsize(path)} bytes, the published file has {os.path.getsize(published)}")
        if sanitized:  # memory faults do not depend on numbers, and this would take minutes
            return None
        text = os.path.join(self.source, "tests", "data", "text", "stories-heldout.txt")
        ppl = [json.loads(run(self.backplane, "ppl", "-m", p, "-f", text, "-C", "512", "--chunks", str(CHUNKS),
                              "--json"))["ppl"] for p in (path, published)]
        ratio = ppl[0] / ppl[1] - 1
        print(f"perplexity {ppl[0]:.4f}, published {ppl[1]:.4f}: {100 * ratio:+.2f} %")
        if not (ppl[1] > 1 and abs(ratio) <= MAX_PPL):
            sys.exit(f"FAIL: more than {100 * MAX_PPL} % apart")
        return None


def main():
    driver = Driver(*sys.argv[1:5])
    sanitized = "--sanitized" in sys.argv[5:]
    reasons = []
    try:
        import gguf  # noqa: F401
        driver.read_back(sanitized)
    except ImportError as error:
        reasons.append(f"the Python package gguf cannot be imported ({error})")
    why = driver.perplexity(sanitized)
    if why is not None:
        reasons.append(why)
    shutil.rmtree(driver.out, ignore_errors=True)
    if reasons:
        print("SKIP: " + "; ".join(reasons))
        sys.exit(77)
    print("PASS")


if __name__ == "__main__":
    main()
