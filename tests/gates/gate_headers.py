"""gate_headers.py - each public header compiles alone, twice over, without a warning, as C11 and as C++17.

--language chooses one of the two; the compiler is given, or the test is skipped with the reason.
SPDX-License-Identifier: MIT
"""
import argparse
import os
import shutil
import subprocess
import sys

import gate

FOLDER = "core/include/backplane"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
STANDARD = {"c": "-std=c11", "c++": "-std=c++17"}


def compile_header(compiler, language, root, header):
    """The compiler's complaint, or an empty text."""
    program = f'#include "backplane/{header}"\n' * 2
    run = subprocess.run([*compiler, STANDARD[language], *WARNINGS, "-x", language, "-I",
                          os.path.join(root, "core/include"), "-"],
                         input=program, capture_output=True, text=True, check=False)
    return "" if run.returncode == 0 else run.stderr.strip() or f"exit status {run.returncode}"


def make_check(compiler, language):
    def check(root, report):
        for name in gate.source_files(root):
            folder, base = os.path.split(name)
            if folder != FOLDER or not base.endswith(".h"):
                continue
            report.checked += 1
            complaint = compile_header(compiler, language, root, base)
            if complaint:
                report.bad(name, 0, f"does not compile alone as {language}:\n{complaint}")
    return check


GUARD = "#ifndef X_H\n#define X_H\n%s\n#endif\n"
CLEAN = {f"{FOLDER}/x.h": GUARD % "#include <stdint.h>\nstruct bp_x { int32_t a; };"}
PLANTED = [
    ("a header that needs another", {f"{FOLDER}/x.h": GUARD % "struct bp_x { int32_t a; };"}, "does not compile alone"),
    ("a header without guard", {f"{FOLDER}/x.h": "struct bp_x { int a; };\n"}, "does not compile alone"),
    ("a header with a warning", {f"{FOLDER}/x.h": GUARD % "static int f(int a) { return 0; }"},
     "does not compile alone"),
]
PLANTED_LANGUAGE = {
    "c": [("C++ in C", {f"{FOLDER}/x.h": GUARD % "class x { };"}, "does not compile alone")],
    "c++": [("C only", {f"{FOLDER}/x.h": GUARD % "struct bp_x { int new; };"}, "does not compile alone")],
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root")
    parser.add_argument("--language", choices=["c", "c++"], required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    compiler = args.compiler.split()
    if shutil.which(compiler[0]) is None:
        print(f"SKIP: no {args.language} compiler named {compiler[0]} is installed")
        sys.exit(77)
    check = make_check(compiler, args.language)
    if args.self_test:
        sys.exit(gate.self_test(check, CLEAN, PLANTED + PLANTED_LANGUAGE[args.language]))
    report = gate.Report()
    check(args.root, report)
    sys.exit(report.finish("headers"))


if __name__ == "__main__":
    main()
