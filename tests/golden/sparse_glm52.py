"""sparse_glm52.py - a model of GLM-5.2's true size is inspected at once, without reading its weights.

Usage: sparse_glm52.py BACKPLANE SOURCE OUT [--sanitized]
Makes the sparse model in OUT, runs inspect --json with a cold page cache, and asks the kernel which pages of the files
were read. Exit: 0 good, 1 not, 77 skipped (the file system refuses the files; reason printed).
SPDX-License-Identifier: MIT
"""
import ctypes
import json
import mmap
import os
import shutil
import subprocess
import sys
import time

MAX_SECONDS, MAX_RSS_KB = 2.0, 128 << 10
# A header's last bytes share pages with the first weights, and a piece of what follows may be asked for with it.
MAX_BEHIND_HEADERS = 13 * (512 << 10)
TRIES = 3
# mix: types, and the size of all shards in bytes to a tenth of a percent
MIXES = {"402gb": ({"f32": 709, "q8_0": 872, "q3_k": 28, "iq4_xs": 200}, 402e9),
         "q5": ({"f32": 709, "q8_0": 876, "q5_k": 150, "q6_k": 74}, 562e9)}


class Pages:
    """Which pages of a file are in memory."""

    def __init__(self):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.libc = libc

    def resident_bytes(self, path):
        size = os.path.getsize(path)
        vector = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        fd = os.open(path, os.O_RDONLY)
        at = self.libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, fd, 0)
        os.close(fd)
        if at in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), f"{path} cannot be mapped")
        rc = self.libc.mincore(at, size, vector)
        self.libc.munmap(at, size)
        if rc != 0:
            raise OSError(ctypes.get_errno(), "mincore failed")
        return (len(vector) - bytes(vector).count(0)) * mmap.PAGESIZE


def forget(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def timed(args, out):
    """(exit status, wall seconds, cpu seconds, KB of memory) of a program that writes to a file."""
    with open(out, "wb") as f:
        start = time.monotonic()
        child = subprocess.Popen(args, stdout=f)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status) if hasattr(os, "waitstatus_to_exitcode") else status >> 8
    return child.returncode, time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def check_json(j, paths, mix):
    """What inspect says is what the files hold."""
    want = {"arch": "glm-dsa", "bytes": sum(os.path.getsize(p) for p in paths), "missing": [], "cannot_run": None}
    wrong = [f"{k} is {j.get(k)!r}, wanted {v!r}" for k, v in want.items() if j.get(k) != v]
    model = j["model"] or {}
    numbers = {"n_layer": 78, "n_embd": 6144, "n_vocab": 154880, "n_ctx": 1048576, "tokenizer": "glm4"}
    wrong += [f"model.{k} is {model.get(k)!r}, wanted {v!r}" for k, v in numbers.items() if model.get(k) != v]
    types = {}
    for t in j["tensors"]:
        types[t["type"].lower()] = types.get(t["type"].lower(), 0) + 1
    if types != MIXES[mix][0]:
        wrong.append(f"tensor types {types}")
    if abs(j["bytes"] / MIXES[mix][1] - 1) > 1e-3:
        wrong.append(f"{j['bytes']} bytes")
    if [s["tensors"] for s in j["shards"]][0] != 0 or len(j["shards"]) != 13:
        wrong.append(f"shards {j['shards']}")
    full = [r["text"] for r in j["report"] if "21 of 78 layers select" in r["text"]]
    if len(full) != 1:
        wrong.append("the report does not say that 21 of 78 layers select")
    return wrong


def main(argv):
    backplane, source, out = argv[1:4]
    results = [run_mix(mix, backplane, source, out, "--sanitized" in argv) for mix in MIXES]
    return next((r for r in results if r not in (0, 77)), max(results))


def run_mix(mix, backplane, source, out, sanitized):
    shutil.rmtree(out, ignore_errors=True)
    made = subprocess.run([sys.executable, "-B", os.path.join(source, "scripts", "make_sparse_glm52.py"), out, "--mix",
                           mix],
                          stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != 0:
        print(made.stdout, end="")
        shutil.rmtree(out, ignore_errors=True)
        return 77 if made.returncode == 77 else 1
    try:
        return measure(mix, backplane, made.stdout.strip(), out, sanitized)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def measure(mix, backplane, first, out, sanitized):
    paths = sorted(os.path.join(out, name) for name in os.listdir(out))
    pages, answer, tries, came, wrong = Pages(), os.path.join(out, "inspect.json"), [], 0, []
    for i in range(TRIES):
        for path in paths:
            forget(path)
        rc, wall, cpu, rss = timed([backplane, "inspect", first, "--json"], answer)
        tries.append((wall, rss))
        print(f"{mix}: exit {rc}, {wall:.2f} s, {cpu:.2f} s of CPU, {rss} KB")
        if rc != 0:
            return 1
        if i > 0:  # asking for 137 million pages takes seconds, so it is done once
            continue
        try:
            came = sum(pages.resident_bytes(p) for p in paths[1:])
        except OSError as error:
            print(f"SKIP: which pages are in memory cannot be found out: {error}")
            return 77
        print(f"{came} bytes of the {len(paths) - 1} shards with weights came into memory")
    with open(answer, encoding="utf-8") as f:
        wrong += check_json(json.load(f), paths, mix)
    if came > MAX_BEHIND_HEADERS:
        wrong.append(f"more than {MAX_BEHIND_HEADERS} bytes of weights were read")
    # Other work on the machine may slow a try; the fastest one counts. Sanitizers have limits of their own.
    seconds, rss = MAX_SECONDS * (10 if sanitized else 1), MAX_RSS_KB * (20 if sanitized else 1)
    if min(t[0] for t in tries) > seconds:
        wrong.append(f"no try took less than {seconds} s")
    if max(t[1] for t in tries) > rss:
        wrong.append(f"more than {rss} KB of memory")
    for text in wrong:
        print(f"FAIL: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
