"""gate_headers.py - each public header compiles alone, twice over, without a warning, as C11 and as C++17; so do all of them
in one file, in either order, because a program may be an application and a host of its own plugins.

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


def compile_headers(compiler, language, root, headers):
    """The compiler's complaint about a file that includes these headers, or an empty text."""
    program = "".join(f'#include "backplane/{header}"\n' for header in headers)
    run = subprocess.run([*compiler, STANDARD[language], *WARNINGS, "-x", language, "-I",
                          os.path.join(root, "core/include"), "-"],
                         input=program, capture_output=True, text=True, check=False)
    return "" if run.returncode == 0 else run.stderr.strip() or f"exit status {run.returncode}"


def make_check(compiler, language):
    def check(root, report):
        headers = []
        for name in gate.source_files(root):
            folder, base = os.path.split(name)
            if folder != FOLDER or not base.endswith(".h"):
                continue
            report.checked += 1
            headers.append(base)
            complaint = compile_headers(compiler, language, root, [base, base])
            if complaint:
                report.bad(name, 0, f"does not compile alone as {language}:\n{complaint}")
        for order in (headers, headers[::-1]):
            complaint = compile_headers(compiler, language, root, order) if len(headers) > 1 else ""
            if complaint:
                report.bad(FOLDER, 0, f"all headers in one file do not compile as {language}:\n{complaint}")
    return check


GUARD = "#ifndef X_H\n#define X_H\n%s\n#endif\n"
CLEAN = {f"{FOLDER}/x.h": GUARD % "#include <stdint.h>\nstruct bp_x { int32_t a; };"}
PLANTED = [
    ("a header that needs another", {f"{FOLDER}/x.h": GUARD % "struct bp_x { int32_t a; };"}, "does not compile alone"),
    ("a header without guard", {f"{FOLDER}/x.h": "struct bp_x { int a; };\n"}, "does not compile alone"),
    ("a header with a warning", {f"{FOLDER}/x.h": GUARD % "static int f(int a) { return 0; }"},
     "does not compile alone"),
    ("two headers that give one name to two functions",
     {f"{FOLDER}/x.h": GUARD % "void bp_free(void *p);",
      f"{FOLDER}/y.h": (GUARD % "static inline int bp_free(void *p) { return p == 0; }").replace("X_H", "Y_H")},
     "all headers in one file"),
    ("a header that breaks the one after it",
     {f"{FOLDER}/x.h": GUARD % "#include <stdint.h>\nstruct bp_x { int32_t a; };\n#define size 7",
      f"{FOLDER}/y.h": (GUARD % "struct bp_y { int size; };").replace("X_H", "Y_H")}, "all headers in one file"),
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
