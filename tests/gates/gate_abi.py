"""gate_abi.py - the layout that plugins were built against does not change behind its number.

For each ABI number tests/abi/MAJOR.MINOR keeps the headers (include/backplane) and their layout table (layout.txt).
The rules:
  - the table of today's number equals what today's headers give, line by line: a change needs a new minor
    (scripts/freeze-abi writes its folder);
  - a stored table belongs to the headers stored beside it;
  - types used by value or in files (struct bp_hdr, bp_tensor, bp_plugin_note) are the same in every folder;
  - from 1.0 on, each table of a major is the beginning of the next one: struct by struct the old members stand where
    they stood with type and size, new ones only follow, no enumerator changes its value or goes away.
SPDX-License-Identifier: MIT
"""
import argparse
import os
import re
import shutil
import sys
import tempfile

import abi_layout
import gate

STORE = "tests/abi"
NUMBER = ("BP_ABI_MAJOR", "BP_ABI_MINOR")
FROZEN = ("bp_hdr", "bp_tensor", "bp_plugin_note")


def stored(root):
    """[(major, minor)] of the folders, oldest first."""
    folder = os.path.join(root, STORE)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(tuple(map(int, n.split("."))) for n in names if re.fullmatch(r"\d+\.\d+", n))


def table_of(root, number):
    path = os.path.join(root, STORE, "%d.%d" % number, "layout.txt")
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8") as f:
        return f.read().splitlines()


def first_difference(old, new):
    """A sentence about the first line that differs, or ''."""
    struct = ""
    for i in range(max(len(old), len(new))):
        a, b = (lines[i] if i < len(lines) else "nothing" for lines in (old, new))
        if a != b:
            return f"{struct + ': ' if a.startswith('  ') or b.startswith('  ') else ''}'{a.strip()}' became '{b.strip()}'"
        if a.startswith("struct "):
            struct = a.split()[1]
    return ""


def compare_growth(old, new, report, where):
    """Appending is all that may happen between two minors of a major."""
    old_structs, old_enums = abi_layout.parse(old)
    new_structs, new_enums = abi_layout.parse(new)
    for name, (_, fields) in old_structs.items():
        if name not in new_structs:
            report.bad(where, 0, f"struct {name} is gone")
            continue
        now = new_structs[name][1][:len(fields)]
        for i, field in enumerate(fields):
            if i >= len(now) or now[i] != field:
                report.bad(where, 0, f"struct {name}: member {field[0]} was moved, changed or removed")
                break
    for name, value in old_enums.items():
        if name not in NUMBER and new_enums.get(name) != value:
            report.bad(where, 0, f"{name} was {value} and is {new_enums.get(name, 'gone')}")


def check_frozen(name, table, first, report, where):
    old, new = abi_layout.parse(first)[0].get(name), abi_layout.parse(table)[0].get(name)
    if old is not None and old != new:
        report.bad(where, 0, f"struct {name} is frozen and differs from the oldest stored one")


def check_today(root, compiler, numbers, report):
    """Today's table, checked against the stored one of its number; None when there are no headers."""
    lines = abi_layout.layout(os.path.join(root, "core/include"), compiler)
    if not lines:
        return None
    enums = abi_layout.parse(lines)[1]
    number = (enums.get(NUMBER[0]), enums.get(NUMBER[1]))
    report.checked += 1
    if number not in numbers:
        report.bad(STORE, 0, "ABI %s.%s has no folder; scripts/freeze-abi makes it" % number)
        return lines
    difference = first_difference(table_of(root, number) or [], lines)
    if difference:
        report.bad("core/include/backplane", 0, "the layout of ABI %d.%d changed: " % number + difference +
                   "; raise BP_ABI_MINOR and run scripts/freeze-abi")
    return lines


def make_check(compiler):
    def check(root, report):
        numbers = stored(root)
        try:
            check_today(root, compiler, numbers, report)
            tables = []
            for number in numbers:
                where = "%s/%d.%d" % (STORE, *number)
                table = table_of(root, number)
                if table is None:
                    report.bad(where, 0, "has no layout.txt")
                    continue
                report.checked += 1
                made = abi_layout.layout(os.path.join(root, where, "include"), compiler)
                difference = first_difference(table, made)
                if difference:
                    report.bad(where, 0, "layout.txt does not belong to the headers beside it: " + difference)
                tables.append((number, table))
            for (number, table), (before, older) in zip(tables[1:], tables):
                where = "%s/%d.%d" % (STORE, *number)
                if number[0] == before[0] >= 1:
                    compare_growth(older, table, report, where)
                for name in FROZEN:
                    check_frozen(name, table, tables[0][1], report, where)
        except abi_layout.LayoutError as e:
            report.bad("core/include/backplane", 0, str(e))
    return check


# ---- self-test ----

def header(major, minor, members="uint32_t a;\n    int32_t (*f)(void *self, const char *s);", more=""):
    return (f"#include <stddef.h>\n#include <stdint.h>\nenum {{ BP_ABI_MAJOR = {major}, BP_ABI_MINOR = {minor} }};\n"
            f"struct bp_hdr {{ uint32_t size, flags; const void *next; }};\n"
            f"struct bp_x {{\n    struct bp_hdr h;\n    {members}\n}};\n{more}\n")


def tree(compiler, today, *folders):
    """today: a header; folders: (number, header, changed table or None)."""
    files = {"core/include/backplane/types.h": today}
    for number, text, change in folders:
        with tempfile.TemporaryDirectory() as work:
            gate.write_tree(work, {"backplane/types.h": text})
            lines = abi_layout.layout(work, compiler)
        files[f"{STORE}/{number}/include/backplane/types.h"] = text
        files[f"{STORE}/{number}/layout.txt"] = "\n".join(change(lines) if change else lines) + "\n"
    return files


def planted(compiler):
    one = ("1.0", header(1, 0), None)
    wider = "uint32_t a;\n    int32_t (*f)(void *self, const char *s);\n    uint64_t b;"
    moved = "uint64_t b;\n    uint32_t a;\n    int32_t (*f)(void *self, const char *s);"
    typed = "uint32_t a;\n    int64_t (*f)(void *self, const char *s);"
    return [
        ("a member appended without a new minor", tree(compiler, header(1, 0, wider), one), "ABI 1.0 changed"),
        ("a signature changed without a new minor", tree(compiler, header(1, 0, typed), one), "int64_t (*)"),
        ("a minor without folder", tree(compiler, header(1, 2), one), "ABI 1.2 has no folder"),
        ("a member moved by a new minor",
         tree(compiler, header(1, 1, moved), one, ("1.1", header(1, 1, moved), None)), "member a was moved"),
        ("an enumerator changed by a new minor",
         tree(compiler, header(1, 1, more="enum { BP_Y = 2 };"), ("1.0", header(1, 0, more="enum { BP_Y = 1 };"), None),
              ("1.1", header(1, 1, more="enum { BP_Y = 2 };"), None)), "BP_Y was 1 and is 2"),
        ("a table that is not of its headers",
         tree(compiler, header(1, 0), ("1.0", header(1, 0), lambda lines: lines[:-1])), "does not belong to the headers"),
        ("a frozen type changed",
         tree(compiler, header(1, 0).replace("next;", "next; uint64_t x;"), ("0.9", header(0, 9), None),
              ("1.0", header(1, 0).replace("next;", "next; uint64_t x;"), None)), "bp_hdr is frozen"),
        ("a member that cannot be read", tree(compiler, header(1, 0, "uint32_t a : 3;"), one), "cannot read"),
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root")
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    compiler = args.compiler.split()
    if shutil.which(compiler[0]) is None:
        print(f"SKIP: no compiler named {compiler[0]} is installed")
        sys.exit(77)
    check = make_check(compiler)
    if args.self_test:
        grown = header(1, 1, "uint32_t a;\n    int32_t (*f)(void *self, const char *s);\n    uint64_t b;")
        clean = tree(compiler, grown, ("1.0", header(1, 0), None), ("1.1", grown, None))
        sys.exit(gate.self_test(check, clean, planted(compiler)))
    report = gate.Report()
    check(args.root, report)
    sys.exit(report.finish("ABI tables"))


if __name__ == "__main__":
    main()
