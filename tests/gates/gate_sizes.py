"""gate_sizes.py - files of at most 800 lines, functions of at most 100, a checkout of at most 46 MiB.

Generated tables (.inc) are exempt from the line limits; nothing is exempt from the sum.
SPDX-License-Identifier: MIT
"""
import os
import re

import gate

MAX_LINES = 800
MAX_FUNCTION = 100
MAX_TREE_BYTES = 46 << 20
SOURCES = (".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".def")
C_LIKE = (".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh")
FUNCTION_OPEN = re.compile(r"^\{$", re.M)


def is_source(root, name):
    if name.endswith(SOURCES) or os.path.basename(name) == "CMakeLists.txt":
        return True
    with open(os.path.join(root, name), "rb") as f:
        return f.read(2) == b"#!"


def functions(text):
    """(first line, lines) of each body: in our form its braces stand alone in the first column."""
    opened = 0
    for number, line in enumerate(text.split("\n"), 1):
        if line == "{":
            opened = number
        elif line.startswith("}") and opened:
            yield opened, number - opened + 1
            opened = 0


def check(root, report):
    total = 0
    for name in gate.source_files(root):
        total += os.path.getsize(os.path.join(root, name))
        if name.endswith(".inc") or not is_source(root, name):
            continue
        text = gate.read_text(root, name)
        if text is None:
            continue
        report.checked += 1
        n_lines = text.count("\n")
        if n_lines > MAX_LINES:
            report.bad(name, n_lines, f"{n_lines} lines, the limit is {MAX_LINES}: split it by topic")
        if not name.endswith(C_LIKE):
            continue
        for line, length in functions(gate.without_comments(text)):
            report.checked += 1
            if length > MAX_FUNCTION:
                report.bad(name, line, f"a function of {length} lines, the limit is {MAX_FUNCTION}")
    if total > MAX_TREE_BYTES:
        report.bad(".", 0, f"all files together have {total} bytes, the limit is {MAX_TREE_BYTES}")


BODY = "int f(void)\n{\n" + "    ;\n" * 97 + "}\n"
CLEAN = {"core/a.c": BODY + "\n" * 600, "core/t.inc": "0,\n" * 5000, "scripts/x": "#!/bin/sh\n", "data": "\n" * 900}
PLANTED = [
    ("a C file of 801 lines", {"core/a.c": "\n" * 801}, "801 lines"),
    ("a script without ending", {"scripts/x": "#!/bin/sh\n" + "\n" * 800}, "801 lines"),
    ("a header", {"core/a.h": "\n" * 900}, "900 lines"),
    ("a kernel file", {"plugins/x/k.cu": "\n" * 900}, "900 lines"),
    ("a build file", {"core/CMakeLists.txt": "\n" * 900}, "900 lines"),
    ("a function of 101 lines", {"core/a.c": BODY.replace("{\n", "{\n    ;\n    ;\n")}, "a function of 101 lines"),
    ("a tree too large to travel", {"blob": bytes(MAX_TREE_BYTES)}, "all files together"),
]

if __name__ == "__main__":
    gate.main(check, "files and functions", CLEAN, PLANTED)
