"""test_long_texts.py - a megabyte of one thing, from a file and from standard input: tokenized in linear time.

Spaces, one letter, deep nesting and the like are what splitters with backtracking and naive merging take minutes for.
Not here: the same inside the library (unit tests of core/token).
SPDX-License-Identifier: MIT
"""
import json
import os
import subprocess
import sys
import tempfile

import fault_case as fc

MODEL = os.path.join(fc.SOURCE, "models", "bp-tiny-glm-dsa-Q4_K_M.gguf")
BYTES = 1 << 20
SMALL = BYTES // 8
FACTOR = fc.SECONDS  # 1, and 10 where sanitizers or a debug build slow things down
TEXTS = {"spaces": " ", "newlines": "\n", "carriage-returns": "\r\n", "one-letter": "a", "one-digit": "7",
         "one-mark": "!", "brackets": "(", "nesting": '[{"a":', "quotes": "'", "letters-and-spaces": "a ",
         "combining": "e\u0301", "wide": "\u65e5", "emoji": "\U0001f642", "tabs-and-letters": "\t\tx",
         "almost-a-marker": "<|user", "apostrophes": "'s't", "zero-width": "\u200d", "numbers": "12345 "}


def write_doubling_model(path):
    """Every pair of neighbours can be joined, five times over: a whole megabyte is one word that merging works on."""
    m = fc.zoo("zoo-v3")
    ge = fc.ge
    texts, types = list(m.kv["tokenizer.ggml.tokens"].value), list(m.kv["tokenizer.ggml.token_type"].value)
    merges = []
    for i in range(5):
        texts[259 + i], types[259 + i] = b"a" * (2 << i), 1
        merges.append(b"a" * (1 << i) + b" " + b"a" * (1 << i))
    m.kv["tokenizer.ggml.tokens"] = ge.Key(ge.ARRAY, texts, ge.STRING)
    m.kv["tokenizer.ggml.token_type"] = ge.Key(ge.ARRAY, types, ge.I32)
    m.kv["tokenizer.ggml.merges"] = ge.Key(ge.ARRAY, merges, ge.STRING)
    ge.write(path, m)


def run(model, args, given):
    """Exit status, standard output, standard error, seconds of processor time."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as text:
        text.write(given)
        text.seek(0)
        child = subprocess.Popen([fc.CLI, "tokenize", "-m", model, *args], stdin=text, stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return child.returncode, out.read(), err.read(), usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def repeated(unit, n):
    raw = unit.encode()
    return raw * (n // len(raw))


def check(name, unit, folder, model=MODEL, n_tokens=None):
    bad = []
    path = os.path.join(folder, name)
    large, small = repeated(unit, BYTES), repeated(unit, SMALL)
    fc.write_file(folder, name, large)
    runs = {"-f": run(model, ("-f", path), b""), "stdin": run(model, (), large), "small": run(model, (), small)}
    for way, (rc, out, err, _, _) in runs.items():
        if rc != 0 or err != b"" or not out.endswith(b"\n"):
            bad.append(f"{way}: exit {rc}, {err[:200]!r}")
    if runs["-f"][1] != runs["stdin"][1]:
        bad.append("the file and standard input give other tokens")
    n = len(runs["-f"][1].split())
    if n_tokens is not None and n != n_tokens:
        bad.append(f"{n} tokens, not {n_tokens}")
    slow, base = max(runs["-f"][3], runs["stdin"][3]), runs["small"][3]
    if slow > 2.0 * FACTOR:
        bad.append(f"{slow:.2f} s of processor time for a megabyte")
    # Eight times the text; twice that for caches and the clock's steps. A square law would give 64.
    if slow > 16 * base + 0.1 * FACTOR:
        bad.append(f"{slow:.2f} s for {BYTES} bytes, {base:.2f} s for {SMALL}: not linear")
    rc, out, _, _, _ = run(model, ("--json",), repeated(unit, 20000))
    tokens = json.loads(out)["tokens"] if rc == 0 else []
    back = b"".join(bytes(t["bytes"]) if "bytes" in t else t["text"].encode() for t in tokens)
    if back != repeated(unit, 20000):
        bad.append("the tokens do not spell the text")
    print(f"{name}: {n} tokens, {slow:.2f} s, {runs['-f'][4] / 1024:.0f} MiB"
          f"{'; ' if bad else ''}{'; '.join(bad)}")
    return not bad


def main():
    with tempfile.TemporaryDirectory() as folder:
        good = [check(name, unit, folder) for name, unit in TEXTS.items()]
        doubling = os.path.join(folder, "doubling.gguf")
        write_doubling_model(doubling)
        good.append(check("merged-letters", "a", folder, doubling, BYTES // 32))
        good.append(check("merged-letters-odd", "aaab", folder, doubling, BYTES // 4 * 3))
    print(f"{sum(good)} of {len(good)} texts in linear time")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
