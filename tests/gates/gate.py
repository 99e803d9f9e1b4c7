"""gate.py - what all gates share: the list of source files, C without comments, the report, the self-test.

A gate prints every violation with its place, then how many things it looked at, and fails when that number is zero:
a gate that checks nothing must not pass. With --self-test it plants violations in a temporary tree and fails unless
each of them turns it red and the clean tree stays green.
SPDX-License-Identifier: MIT
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED_DIRS = {".git", "build", "shared", "__pycache__", ".cache"}


def source_files(root):
    """Relative paths of all files that are, or would be, part of the repository."""
    if os.path.exists(os.path.join(root, ".git")) and shutil.which("git"):
        listed = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z", "--cached", "--others",
             "--exclude-standard"], capture_output=True, check=False)
        if listed.returncode == 0 and listed.stdout:
            names = sorted(set(listed.stdout.decode("utf-8", "surrogateescape").split("\0")))
            return [n for n in names if n and os.path.isfile(os.path.join(root, n))]
    found = []
    for folder, dirs, names in os.walk(root):
        at_top = os.path.samefile(folder, root)
        dirs[:] = [d for d in dirs if d not in SKIPPED_DIRS and not (at_top and d.startswith("build"))]
        found += [os.path.relpath(os.path.join(folder, n), root) for n in names]
    return sorted(found)


def read_text(root, name):
    """The file's text, or None for a binary file."""
    with open(os.path.join(root, name), "rb") as f:
        raw = f.read()
    return None if b"\0" in raw[:8192] else raw.decode("utf-8", "replace")


TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def without_comments(text, keep_strings=False):
    """C text with comments (and contents of strings) blanked; line numbers stay the same."""
    def blank(match):
        s = match.group(0)
        if s[0] == "/":
            return " " + "\n" * s.count("\n")
        return s if keep_strings else s[0] + s[0]
    return TOKEN.sub(blank, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


class Report:
    """Collects violations and the number of things looked at."""

    def __init__(self):
        self.violations = []
        self.checked = 0

    def bad(self, name, line, sentence):
        self.violations.append(f"{name}:{line}: {sentence}" if line else f"{name}: {sentence}")

    def finish(self, what):
        for v in self.violations:
            print(v)
        print(f"checked {self.checked} {what}, {len(self.violations)} violations")
        if self.checked == 0:
            print("nothing was checked: the gate does not know its tree any more")
            return 1
        return 1 if self.violations else 0


def write_tree(root, files):
    for name, content in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        mode = "wb" if isinstance(content, bytes) else "w"
        with open(path, mode) as f:
            f.write(content)


def self_test(check, clean, planted):
    """check(root, report); clean: {path: text}; planted: [(what, {path: text}, words of the violation)]."""
    failures = 0
    with tempfile.TemporaryDirectory() as root:
        write_tree(root, clean)
        report = Report()
        check(root, report)
        if report.violations or report.checked == 0:
            print("the clean tree is not green:", report.violations, "checked", report.checked)
            failures += 1
    for what, files, words in planted:
        with tempfile.TemporaryDirectory() as root:
            write_tree(root, clean)
            write_tree(root, files)
            report = Report()
            check(root, report)
        hits = [v for v in report.violations if words in v]
        print(("red as it should be: " if hits else "NOT NOTICED: ") + what)
        if not hits:
            print("   expected:", words, "  got:", report.violations)
            failures += 1
    with tempfile.TemporaryDirectory() as root:
        report = Report()
        check(root, report)
        if report.checked != 0:
            print("an empty tree is not noticed")
            failures += 1
    print(f"self-test: {len(planted)} planted violations, {failures} failures")
    return 1 if failures or not planted else 0


def main(check, what, clean, planted):
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", help="the source tree")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        sys.exit(self_test(check, clean, planted))
    if not args.root:
        parser.error("--root is needed")
    report = Report()
    check(args.root, report)
    sys.exit(report.finish(what))
