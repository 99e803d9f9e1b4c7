"""gate_ptxas.py - what the assembler said about the kernels of the CUDA plugins: every kernel has machine code for sm_90 and
sm_120a, no block needs more static shared memory than every chip has, and kernels that a plugin lists in kernels/hot.txt (a
regular expression on the mangled name a line) neither spill registers nor keep a stack.

Reads plugins/NAME/backplane-NAME.cuda/FILE.ptxas of the build folder, which nvcc -Xptxas -v wrote as it compiled FILE.
SPDX-License-Identifier: MIT
"""
import argparse
import glob
import os
import re
import sys

import gate

MOST_SHARED = 101376
WANTED = ("sm_90", "sm_120a")
ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
# Names of anonymous namespaces carry a hash of the file, which differs from one architecture to the next.
ANONYMOUS = re.compile(r"_GLOBAL__N__[0-9a-f]{8}_\d+_\w+?_[0-9a-f]{8}")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
SHARED = re.compile(r"(\d+) bytes smem")


def read_kernels(text):
    """(name, architecture, stack, spilled, shared bytes) of each kernel of one file's log."""
    parts = ENTRY.split(text)
    for name, arch, said in zip(parts[1::3], parts[2::3], parts[3::3]):
        frame, shared = FRAME.search(said), SHARED.search(said)
        if frame is None or "Used " not in said:
            raise ValueError(f"no numbers behind {name}")
        yield (ANONYMOUS.sub("_anonymous", name), arch, int(frame.group(1)), int(frame.group(2)) + int(frame.group(3)),
               int(shared.group(1)) if shared else 0)


def read_hot(root, plugin):
    path = os.path.join(root, "plugins", plugin, "kernels", "hot.txt")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [line.strip() for line in f if line.strip() and not line.startswith("#")]


def check_log(where, text, hot, seen, archs, report):
    found = {}
    try:
        kernels = list(read_kernels(text))
    except ValueError as e:
        report.bad(where, 0, f"the log of ptxas is not understood: {e}")
        return
    for name, arch, stack, spilled, shared in kernels:
        report.checked += 1
        found.setdefault(name, set()).add(arch)
        if shared > MOST_SHARED:
            report.bad(where, 0, f"{name} for {arch} has {shared} bytes of static shared memory, more than {MOST_SHARED}")
        for pattern in hot:
            if not re.search(pattern, name):
                continue
            seen.add(pattern)
            if stack or spilled:
                report.bad(where, 0, f"{name} for {arch} is hot, and spills {spilled} bytes, with a stack of {stack}")
    for name, has in found.items():
        for arch in archs:
            if arch not in has:
                report.bad(where, 0, f"{name} has no machine code for {arch}, only for {', '.join(sorted(has))}")


def check_plugin(root, build, plugin, sources, archs, report):
    hot, seen = read_hot(root, plugin), set()
    n_before = len(report.violations)
    for source in sources:
        where = f"plugins/{plugin}/backplane-{plugin}.cuda/{os.path.basename(source)}.ptxas"
        path = os.path.join(build, where)
        if not os.path.exists(path):
            report.bad(source, 0, "was not compiled: build all targets, then run the gates")
            continue
        with open(path, encoding="utf-8", errors="replace") as f:
            check_log(where, f.read(), hot, seen, archs, report)
    if len(report.violations) == n_before:
        for pattern in hot:
            if pattern not in seen:
                report.bad(f"plugins/{plugin}/kernels/hot.txt", 0, f"no kernel is called {pattern}")


def make_check(build=None, archs=WANTED):
    def check(root, report):
        for folder in sorted(glob.glob(os.path.join(root, "plugins", "*"))):
            sources = sorted(os.path.relpath(p, root) for p in glob.glob(os.path.join(folder, "**", "*.cu"), recursive=True))
            if sources:
                check_plugin(root, build or os.path.join(root, "build"), os.path.basename(folder), sources, archs, report)
    return check


def entry(name, arch, stack=0, spilled=0, shared=""):
    return (f"ptxas info    : Compiling entry function '{name}' for '{arch}'\n"
            f"ptxas info    : Function properties for {name}\n"
            f"    {stack} bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads\n"
            f"ptxas info    : Used 32 registers, used 1 barriers{shared}\n")


LOG = "build/plugins/a/backplane-a.cuda/x.cu.ptxas"
NAME = "_ZN44_GLOBAL__N__%s_11_x_cu_251eac5e15fast_kernelE4args"
GOOD = entry(NAME % "55bd5641", "sm_90", shared=", 64 bytes smem") + entry(NAME % "66aa0000", "sm_120a")
COLD = entry("slow", "sm_90", 8, 16) + entry("slow", "sm_120a", 8, 16)
CLEAN = {"plugins/a/kernels/x.cu": "", "plugins/a/kernels/hot.txt": "# a comment\nfast_kernel\n", LOG: GOOD + COLD,
         "plugins/b/plugin.c": ""}
PLANTED = [
    ("a kernel without sm_120a", {LOG: GOOD + entry("slow", "sm_90")}, "no machine code for sm_120a"),
    ("a hot kernel without sm_90", {LOG: entry(NAME % "55bd5641", "sm_120a")}, "no machine code for sm_90"),
    ("too much shared memory", {LOG: GOOD + COLD.replace("barriers", "barriers, 101377 bytes smem")}, "more than 101376"),
    ("a hot kernel that spills", {LOG: GOOD + entry("fast_kernel2", "sm_90", 0, 4) + entry("fast_kernel2", "sm_120a")},
     "spills 8 bytes"),
    ("a hot kernel with a stack", {LOG: GOOD + entry("fast_kernel2", "sm_90") + entry("fast_kernel2", "sm_120a", 32)},
     "with a stack of 32"),
    ("a hot kernel that is gone", {"plugins/a/kernels/hot.txt": "fast_kernel\nold_kernel\n"}, "no kernel is called old_kernel"),
    ("a source without a log", {"plugins/a/kernels/y.cu": ""}, "was not compiled"),
    ("a log that is cut", {LOG: GOOD[:-80]}, "not understood"),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root")
    parser.add_argument("--build")
    parser.add_argument("--archs", default="", help="what BP_CUDA_ARCHS was set to, with commas; empty: the usual ones")
    parser.add_argument("--without", default="", help="why no kernels were compiled")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        sys.exit(gate.self_test(make_check(), CLEAN, PLANTED))
    if args.without:
        print(f"SKIP: no kernels were compiled: {args.without}")
        sys.exit(77)
    archs = ["sm_" + a for a in args.archs.split(",") if a and not a.endswith("-virtual")] or WANTED
    report = gate.Report()
    make_check(args.build, archs)(args.root, report)
    status = report.finish("kernels times architectures")
    missing = [a for a in WANTED if a not in archs]
    if status == 0 and missing:
        print(f"SKIP: this build leaves {', '.join(missing)} out (BP_CUDA_ARCHS = {args.archs})")
        status = 77
    sys.exit(status)


if __name__ == "__main__":
    main()
