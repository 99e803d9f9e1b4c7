"""test_man_lint.py - what man, groff and mandoc say about the manual pages: nothing. Skips where none of them is there.

SPDX-License-Identifier: MIT
"""
import os
import shutil
import subprocess
import sys
import tempfile

from cli_case import CLI

# man(1) needs a locale with UTF-8 only for text beyond ASCII, of which the pages have none.
LINTERS = {
    "groff": ["groff", "-man", "-Tascii", "-ww", "-z"],
    "mandoc": ["mandoc", "-T", "lint", "-W", "warning"],
    "man": ["man", "--warnings=w", "-E", "ascii", "-l", "-Tascii", "-Z"],
}
# The pages carry no date, so that two builds give the same bytes.
WANTED = ("missing date",)


def works(name):
    """Is it there, and does it keep silent on a page without fault and speak on one with a fault?"""
    if shutil.which(name) is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        said = []
        for i, text in enumerate(('.TH A 1 "2026-01-01" "a" "b"\n.SH NAME\na \\- b\n', ".TH A 1\n.SH NAME\n\\*[nothing] \\fQx\n")):
            path = os.path.join(folder, f"p{i}.1")
            with open(path, "w", encoding="ascii") as f:
                f.write(text)
            done = subprocess.run([*LINTERS[name], path], capture_output=True, check=False)
            said.append(complaints(name, done))
        return not said[0] and bool(said[1])


def complaints(name, done):
    text = done.stdout if name == "mandoc" else done.stderr
    return [line for line in text.decode("utf-8", "replace").splitlines() if not any(w in line for w in WANTED)]


def main():
    usable = [name for name in LINTERS if works(name)]
    if not usable:
        print("SKIP: neither groff nor mandoc nor man with warnings is installed, so nothing checks the manual pages")
        return 77
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([CLI, "help", "--man", folder], check=True)
        pages = sorted(os.listdir(folder))
        for name in usable:
            for page in pages:
                done = subprocess.run([*LINTERS[name], os.path.join(folder, page)], capture_output=True, check=False)
                for line in complaints(name, done):
                    print(f"{name}: {page}: {line}")
                    bad += 1
                if done.returncode != 0 and name != "mandoc":
                    print(f"{name}: {page}: exit {done.returncode}")
                    bad += 1
    print(f"{len(pages)} pages, {', '.join(usable)}: {bad} complaints")
    return 1 if bad or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
