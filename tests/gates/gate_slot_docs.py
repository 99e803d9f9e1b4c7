"""gate_slot_docs.py - every op of a slot says what it needs, writes, returns, how exact it is, and since when.

The comment directly above each function pointer of core/include/backplane/slot_*.h must name all six fields.
SPDX-License-Identifier: MIT
"""
import os
import re

import gate

FIELDS = ["Pre", "Writes", "Errors", "Numeric", "Threads", "Since"]
POINTER = re.compile(r"\(\s*\*\s*(\w+)\s*\)\s*\(")


def comment_above(text, code, offset):
    """The comment that ends right where the declaration at `offset` begins; None when there is none."""
    start = max(code.rfind(c, 0, offset) for c in ";{}") + 1  # code has comments blanked: these are real
    between = text[start:offset]
    opened, closed = between.rfind("/*"), between.rfind("*/")
    # A remark behind the previous declaration, on its line, is not this one's comment.
    if opened < 0 or closed < opened or "\n" not in between[:opened]:
        return None
    return between[opened:closed]


def blank_comments(text):
    return re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.S)


def check(root, report):
    for name in gate.source_files(root):
        folder, base = os.path.split(name)
        if folder != "core/include/backplane" or not re.match(r"slot_\w+\.h$", base):
            continue
        text = gate.read_text(root, name)
        code = blank_comments(text)
        for m in POINTER.finditer(code):
            report.checked += 1
            line, comment = gate.line_of(text, m.start()), comment_above(text, code, m.start())
            if comment is None:
                report.bad(name, line, f"{m.group(1)} has no comment directly above it")
                continue
            missing = [f for f in FIELDS if not re.search(rf"\b{f}\b", comment)]
            if missing:
                report.bad(name, line, f"the comment of {m.group(1)} does not say: {', '.join(missing)}")


GOOD = ("/* run - does it. Pre: none. Writes: out. Errors: none.\n * Numeric: exact. Threads: any. Since: 0.1. */\n"
        "    int (*run)(void *self,\n               const int *a);\n")
HEAD = "struct bp_x_ops {\n    int size; /* bytes */\n    "
CLEAN = {"core/include/backplane/slot_x.h": HEAD + GOOD + "    " + GOOD.replace("*run", "*run2") + "};\n"}
PLANTED = [(f"without {field}", {"core/include/backplane/slot_x.h": HEAD + GOOD.replace(field, "") + "};\n"},
            f"does not say: {field}") for field in FIELDS] + [
    ("no comment", {"core/include/backplane/slot_x.h": HEAD + "int (*run)(void);\n};\n"}, "no comment"),
    ("a second op without its own", {"core/include/backplane/slot_x.h": HEAD + GOOD + "    int (*b)(void);\n};\n"},
     "b has no comment"),
    ("a remark instead", {"core/include/backplane/slot_x.h": HEAD + "int a; " + GOOD.replace("\n *", " ") + "};\n"},
     "no comment"),
]

if __name__ == "__main__":
    gate.main(check, "ops", CLEAN, PLANTED)
