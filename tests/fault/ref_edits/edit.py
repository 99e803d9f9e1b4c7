"""edit.py - makes the source of a faulty copy: one search and one replacement in one file of core.

    edit.py --list                     lines "name file" of all faults, for CMake
    edit.py NAME CORE_FOLDER OUTPUT    writes the edited file

The searched text must stand in the file exactly once; otherwise core has changed under the fault, and the build fails
with a sentence instead of testing nothing.
SPDX-License-Identifier: MIT
"""
import os
import sys

from faults import FAULTS, KIT_FAULTS

ALL = FAULTS + KIT_FAULTS


def edited(fault, text):
    n = text.count(fault.old)
    if n != 1 or fault.old == fault.new:
        sys.exit(f"edit.py: fault {fault.name}: its text stands {n} times in core/{fault.file} and must stand there once, "
                 f"and be replaced by another; bring tests/fault/ref_edits/faults.py up to date:\n{fault.old}")
    return text.replace(fault.old, fault.new)


def main():
    if sys.argv[1:] == ["--list"]:
        for fault in ALL:
            print(fault.name, fault.file)
        return
    if len(sys.argv) != 4:
        sys.exit("usage: edit.py --list | edit.py NAME CORE_FOLDER OUTPUT")
    name, core, output = sys.argv[1:]
    fault = {f.name: f for f in ALL}.get(name)
    if fault is None:
        sys.exit(f"edit.py: no fault is called {name}")
    with open(os.path.join(core, fault.file), encoding="utf-8") as f:
        text = f.read()
    line = text[:text.find(fault.old)].count("\n") + 1
    made = edited(fault, text)
    with open(output, "w", encoding="utf-8") as f:
        f.write(made)
    print(f"{name}: core/{fault.file}:{line}")


if __name__ == "__main__":
    main()
