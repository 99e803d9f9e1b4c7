"""coverage.py - line coverage of core/ from the counters of a build that was made with BP_COVERAGE=ON.

Usage: coverage.py BUILD_FOLDER [--source FOLDER] [--limit PERCENT] [--files] [--lines ROOM/FILE.c] [--junit FILE]
       coverage.py --self-test
Reads what gcc's own gcov says about every object of core/, so nothing has to be installed. A line that several objects
hold (inline functions of headers) counts once, as run when any of them ran it. Generated tables (.inc) and what lies
outside core/ do not count; an object that no test linked counts with all its lines as not run.
Exit status: 0 at or above the limit, 1 below it, 2 when there is nothing to read.
SPDX-License-Identifier: MIT
"""
import argparse
import glob
import json
import os
import subprocess
import sys


def notes_of(build):
    """The .gcno file of every object of core/; gcov finds the counters beside them."""
    return sorted(glob.glob(os.path.join(glob.escape(build), "core", "CMakeFiles", "**", "*.gcno"), recursive=True))


def gcov(notes, tool):
    """The JSON documents that gcov prints, one per object."""
    # Names with directories would be looked for relative to the folder gcov runs in; absolute ones are not ambiguous.
    done = subprocess.run([tool, "--json-format", "--stdout", *map(os.path.abspath, notes)], capture_output=True,
                          check=False)
    if done.returncode != 0:
        raise SystemExit(f"coverage.py: {tool} failed: {done.stderr.decode(errors='replace')[-500:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def merge(documents, core):
    """{path below core: {line: times run}}"""
    files = {}
    core = os.path.realpath(core) + os.sep
    for doc in documents:
        for f in doc["files"]:
            path = os.path.realpath(os.path.join(doc.get("current_working_directory", "."), f["file"]))
            if not path.startswith(core) or path.endswith(".inc"):
                continue
            lines = files.setdefault(path[len(core):], {})
            for line in f["lines"]:
                n = line["line_number"]
                lines[n] = max(lines.get(n, 0), line["count"])
    return files


def add_up(files):
    """{room: (lines run, lines)}, for headers in core/include under "include"."""
    rooms = {}
    for path, lines in files.items():
        room = path.split(os.sep)[0]
        run, n = rooms.get(room, (0, 0))
        rooms[room] = (run + sum(c != 0 for c in lines.values()), n + len(lines))
    return rooms


def percent(run, n):
    """Rounded down to a tenth: 84.97 must not be shown as 85.0."""
    return run * 1000 // n / 10 if n else 100.0


def ranges(numbers):
    out = []
    for n in sorted(numbers):
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def report(files, limit, show_files, show_lines):
    """Prints the table; returns the closing line, and whether the whole meets the limit."""
    rooms = add_up(files)
    print(f"{'room':10} {'lines':>6} {'run':>6} {'%':>6}")
    for room, (run, n) in sorted(rooms.items()):
        print(f"{room:10} {n:6} {run:6} {percent(run, n):6.1f}")
    for path, lines in sorted(files.items()):
        run = sum(c != 0 for c in lines.values())
        share = percent(run, len(lines))
        if show_files or share < limit:
            print(f"  {path:36} {len(lines):5} {run:5} {share:6.1f}{'  below the limit' if share < limit else ''}")
        if show_lines in (path, "all"):
            print(f"    not run: {ranges(n for n, c in lines.items() if c == 0)}")
    run, n = (sum(r[i] for r in rooms.values()) for i in (0, 1))
    good = n > 0 and percent(run, n) >= limit
    verdict = f"line coverage of core: {percent(run, n) if n else 0.0:.1f} % (limit {limit:g} %)"
    print(verdict)
    return verdict, good


def write_junit(path, verdict, good):
    """One test case in the form of ctest's, for summary.py."""
    message = "" if good else f'<failure message="{verdict}"/>'
    with open(path, "w", encoding="utf-8") as f:
        f.write(f'<testsuite name="coverage"><testcase name="line_coverage" status="{"run" if good else "fail"}">'
                f"{message}<system-out>{verdict}</system-out></testcase></testsuite>\n")


def gcov_of(build):
    """The gcov beside the compiler that made the build (cc may be any version of gcc), or the one in the path."""
    try:
        with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8", errors="replace") as f:
            compiler = next(line.split("=", 1)[1].strip() for line in f if line.startswith("CMAKE_C_COMPILER:"))
    except (OSError, StopIteration):
        return "gcov"
    folder, name = os.path.split(os.path.realpath(compiler))
    tool = os.path.join(folder, name.replace("gcc", "gcov"))
    return tool if "gcc" in name and os.path.exists(tool) else "gcov"


def self_test():
    """Planted counters: the sums, the rounding and the verdict."""
    docs = [{"current_working_directory": "/s", "files": [
        {"file": "core/a/a.c", "lines": [{"line_number": 1, "count": 0}, {"line_number": 2, "count": 3}]},
        {"file": "/s/core/a/a.h", "lines": [{"line_number": 9, "count": 0}]},
        {"file": "core/a/table.inc", "lines": [{"line_number": 1, "count": 0}]},
        {"file": "/usr/include/x.h", "lines": [{"line_number": 1, "count": 0}]},
        {"file": "core2/b.c", "lines": [{"line_number": 1, "count": 0}]}]},
            {"current_working_directory": "/s/b", "files": [
                {"file": "../core/a/a.h", "lines": [{"line_number": 9, "count": 1}]},
                {"file": "../core/b/b.c", "lines": [{"line_number": n, "count": 0} for n in (4, 5, 7)]}]}]
    files = merge(docs, "/s/core")
    assert files == {"a/a.c": {1: 0, 2: 3}, "a/a.h": {9: 1}, "b/b.c": {4: 0, 5: 0, 7: 0}}, files
    assert add_up(files) == {"a": (2, 3), "b": (0, 3)}
    assert percent(2999, 3000) == 99.9 and percent(0, 3) == 0.0
    assert ranges([7, 4, 5]) == "4-5 7"
    assert report(files, 85.0, True, "all") == ("line coverage of core: 33.3 % (limit 85 %)", False)
    assert report({"a/a.c": {n: int(n < 85) for n in range(100)}}, 85.0, False, None)[1]
    assert not report({"a/a.c": {n: int(n < 84) for n in range(100)}}, 85.0, False, None)[1]
    assert not report({}, 85.0, False, None)[1]
    print("self-test passed")


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("build", nargs="?")
    p.add_argument("--source", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    p.add_argument("--limit", type=float, default=85.0)
    p.add_argument("--gcov", help="which gcov; otherwise that of the build's compiler")
    p.add_argument("--junit", help="also write the verdict as a JUnit file")
    p.add_argument("--files", action="store_true", help="every file, not only those below the limit")
    p.add_argument("--lines", help="also the lines that did not run: of one file, or 'all'")
    p.add_argument("--self-test", action="store_true")
    a = p.parse_args()
    if a.self_test:
        self_test()
        return 0
    notes = notes_of(a.build) if a.build else []
    if not notes:
        print(f"coverage.py: no .gcno files below {a.build}/core; build with BP_COVERAGE=ON", file=sys.stderr)
        return 2
    files = merge(gcov(notes, a.gcov or gcov_of(a.build)), os.path.join(a.source, "core"))
    verdict, good = report(files, a.limit, a.files, a.lines)
    if a.junit:
        write_junit(a.junit, verdict, good)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
