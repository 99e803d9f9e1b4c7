"""fault_case.py - runs the real program on hostile files and holds every refusal to the same contract.

A refusal is: exit status 2; nothing on standard output; exactly one sentence on standard error, which contains the
words that the case names; less than a second; less than 64 MiB at the peak. Sanitizer builds take ten times as long
and their memory is not judged; their reports make a second line and another status, so they fail a case as well.
The program is found in BP_CLI, the repository in BP_SOURCE; both are set by CMake.
SPDX-License-Identifier: MIT
"""
import os
import re
import subprocess
import sys
import tempfile
import time

CLI = os.environ["BP_CLI"]
SOURCE = os.environ["BP_SOURCE"]
SANITIZED = os.environ.get("BP_SANITIZE", "") != ""
SECONDS = 10.0 if os.environ.get("BP_SLOW", "0") != "0" else 1.0
PEAK_KIB = 64 << 10
HANGS_AFTER = 60

sys.path.insert(0, os.path.join(SOURCE, "scripts", "lib"))
import gguf_edit as ge  # noqa: E402  (the path is known only now)

ZOO = os.path.join(SOURCE, "tests", "data", "zoo")
READ = {}


def zoo(name):
    """A fresh copy of a model of the zoo, to be damaged."""
    if name not in READ:
        READ[name] = ge.read(os.path.join(ZOO, name + ".gguf"))
    return READ[name].copy()


def zoo_path(name):
    return os.path.join(ZOO, name + ".gguf")


class Result:
    def __init__(self, args, rc, out, err, seconds, peak_kib):
        self.args, self.rc, self.out, self.err = args, rc, out, err
        self.seconds, self.peak_kib = seconds, peak_kib

    def __str__(self):
        return (f"{' '.join(self.args)[:300]}\n    exit {self.rc}, {self.seconds:.2f} s, {self.peak_kib} KiB\n"
                f"    stdout: {self.out[:300]!r}\n    stderr: {self.err[:1500]!r}")


def run(args, stdin=b""):
    """One run. The peak is the child's own, or this script's at the fork where that is more: some 25 MiB."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        start = time.monotonic()
        child = subprocess.Popen([CLI, *args], stdin=given, stdout=out, stderr=err)
        pid = status = 0
        while pid == 0 and time.monotonic() - start < HANGS_AFTER:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid == 0:
                time.sleep(0.002)
        if pid == 0:
            child.kill()
            pid, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return Result(args, child.returncode, out.read(), err.read(), seconds, usage.ru_maxrss)


def in_time(args, **kw):
    """A busy machine may be late by itself, but not three times in a row."""
    r = run(args, **kw)
    for _ in range(2):
        if r.seconds < SECONDS or r.seconds > HANGS_AFTER:
            break
        again = run(args, **kw)
        r = again if again.seconds < r.seconds else r
    return r


class Suite:
    """Cases by kind. A case builds its files in an empty folder and returns the runs: argument lists."""

    def __init__(self):
        self.cases, self.controls = [], []

    def add(self, kind, name, build, *says):
        self.cases.append((kind, name, build, says))

    def case(self, kind, *says, name=None):
        def keep(fn):
            self.add(kind, name or fn.__name__, fn, *says)
            return fn
        return keep

    def control(self, name, build, *statuses):
        """What the damaged files are made from must itself be accepted, else a refusal would prove nothing."""
        self.controls.append((name, build, statuses))

    def judge(self, r, says):
        bad = []
        if r.rc != 2:
            bad.append(f"exit status {r.rc}, not 2")
        if r.out != b"":
            bad.append("something on standard output")
        if r.err.count(b"\n") != 1 or not r.err.endswith(b"\n") or not r.err.startswith(b"backplane "):
            bad.append("not exactly one sentence of the program on standard error")
        if re.search(rb"[.!?] +[A-Z]", r.err):
            bad.append("more than one sentence")
        for word in says:
            if word.encode() not in r.err:
                bad.append(f"the sentence lacks {word!r}")
        if r.seconds >= SECONDS:
            bad.append(f"{r.seconds:.2f} s")
        if not SANITIZED and r.peak_kib >= PEAK_KIB:
            bad.append(f"{r.peak_kib} KiB at the peak")
        try:
            r.err.decode("utf-8")
        except UnicodeDecodeError:
            bad.append("a sentence that is not UTF-8")
        return bad

    def try_controls(self):
        n_bad = 0
        for name, build, statuses in self.controls:
            with tempfile.TemporaryDirectory() as folder:
                for args in build(folder):
                    r = run(args)
                    if r.rc not in statuses:
                        n_bad += 1
                        print(f"FAIL control {name}: {r}")
        return n_bad

    def main(self, least):
        """least: {kind: number of cases below which the suite fails}, "*" for all kinds together."""
        show = "--show" in sys.argv
        count, n_bad, n_runs, slowest, largest = {}, self.try_controls(), 0, 0.0, 0
        if len({(k, n) for k, n, _, _ in self.cases}) != len(self.cases):
            print("FAIL two cases have one name")
            n_bad += 1
        for kind, name, build, says in self.cases:
            count[kind] = count.get(kind, 0) + 1
            if not says:
                print(f"FAIL {kind} {name}: the case expects no words")
                n_bad += 1
            with tempfile.TemporaryDirectory() as folder:
                for args in build(folder):
                    r = in_time(args)
                    n_runs, slowest, largest = n_runs + 1, max(slowest, r.seconds), max(largest, r.peak_kib)
                    bad = self.judge(r, says)
                    if show:
                        print(f"{kind} {name}: {r.err.decode('utf-8', 'replace').strip()}")
                    if bad:
                        n_bad += 1
                        print(f"FAIL {kind} {name}: {'; '.join(bad)}\n    {r}")
        count["*"] = len(self.cases)
        for kind, n in sorted(count.items()):
            print(f"{'all kinds' if kind == '*' else kind}: {n} cases")
        print(f"{n_runs} runs, the slowest {slowest:.2f} s, the largest {largest / 1024:.1f} MiB, "
              f"limits {SECONDS:.0f} s and {'none (sanitizer)' if SANITIZED else f'{PEAK_KIB >> 10} MiB'}")
        for kind, n in least.items():
            if count.get(kind, 0) < n:
                print(f"FAIL only {count.get(kind, 0)} cases of kind {kind}, at least {n} are wanted")
                n_bad += 1
        print("FAILED" if n_bad else "passed")
        sys.exit(1 if n_bad else 0)


def write_file(folder, name, data):
    path = os.path.join(folder, name)
    with open(path, "wb") as f:
        f.write(data)
    return path
