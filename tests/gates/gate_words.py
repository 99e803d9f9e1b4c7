"""gate_words.py - calls that core must not make, marks of unfinished work anywhere, and how a C file opens.

What the compiled code really calls is looked at by gate_symbols.py; this one also sees what is never compiled.
SPDX-License-Identifier: MIT
"""
import re

import gate

C_LIKE = (".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh")
BANNED = ["malloc", "calloc", "realloc", "free", "strdup", "strndup", "exit", "_exit", "abort", "printf", "vprintf",
          "puts", "putchar", "getenv", "setenv", "strtok", "system", "gets", "strcpy", "strcat", "sprintf", "atoi",
          "atof"]
# A call, but neither a member of a vtable (ops->free) nor a declaration of one.
CALL = re.compile(r"(?<![\w.>])(" + "|".join(BANNED) + r")\s*\(")
STDOUT = re.compile(r"\bstd(out|err)\b")
DLOPEN = re.compile(r"(?<![\w.>])(dlopen|dlmopen|dlsym)\s*\(")
# Spelt in halves so that this file does not find itself.
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" "DO", "FIX" "ME", "XX" "X", "HA" "CK"]) + r")\b")
SPDX = "SPDX-License-Identifier: MIT"


def check_core(name, text, report):
    code = gate.without_comments(text)
    if not name.startswith("core/base/"):
        for pattern, why in ((CALL, "use core/base instead"), (STDOUT, "core prints nothing")):
            for m in pattern.finditer(code):
                report.bad(name, gate.line_of(code, m.start()), f"{m.group(0).strip()} is not for core: {why}")
    if not name.startswith("core/loader/"):
        for m in DLOPEN.finditer(code):
            report.bad(name, gate.line_of(code, m.start()), f"{m.group(1)} belongs to core/loader alone")


def check(root, report):
    for name in gate.source_files(root):
        text = gate.read_text(root, name)
        if text is None:
            continue
        report.checked += 1
        for m in UNFINISHED.finditer(text):
            report.bad(name, gate.line_of(text, m.start()), f"mark of unfinished work: {m.group(1)}")
        if not name.endswith(C_LIKE):
            continue
        opening = re.sub(r"[\s*]+", " ", text[:text.find("*/")])  # the licence line may be wrapped
        if not text.startswith("/* ") or SPDX not in opening:
            report.bad(name, 1, f"the file must open with a comment that says what it is and holds '{SPDX}'")
        if name.startswith("core/"):
            check_core(name, text, report)


TOP = f"/* x.c - something.\n * {SPDX} */\n"
CLEAN = {
    "core/base/m.c": TOP + "void *f(void) { return malloc(1); }\n",
    "core/kv/k.c": TOP + 'void g(void) { ops->free(p); bpi_free(p); s = "free("; } /* free() */\n',
    "core/loader/l.c": TOP + "void *h = dlopen(p, 0);\n",
    "README.md": "Nothing open.\n",
    "x.bin": b"\0TO" b"DO",
}
PLANTED = [(f"a call of {word}", {"core/kv/k.c": TOP + f"void g(void)\n{{\n    {word} (x);\n}}\n"}, f"k.c:5: {word}")
           for word in BANNED] + [
    ("stderr", {"core/kv/k.c": TOP + "void g(void) { fputs(s, stderr); }\n"}, "stderr"),
    ("stdout", {"core/kv/k.c": TOP + "void g(void) { fputs(s, stdout); }\n"}, "stdout"),
    ("a call in a header", {"core/kv/k.h": TOP + "static inline void g(void) { free(p); }\n"}, "k.h:3"),
    ("dlopen outside the loader", {"core/kv/k.c": TOP + "void *h = dlopen(p, 0);\n"}, "core/loader alone"),
    ("an open mark in C", {"core/kv/k.c": TOP + "/* TO" "DO: finish */\n"}, "unfinished"),
    ("an open mark in a text", {"README.md": "FIX" "ME later\n"}, "unfinished"),
    ("an open mark in a script", {"scripts/x": "# XX" "X\n"}, "unfinished"),
    ("a file without licence line", {"core/kv/k.c": "/* k.c - x */\nint x;\n"}, "must open with"),
    ("a file without opening", {"tools/t.c": "int x; " + TOP}, "must open with"),
]

if __name__ == "__main__":
    gate.main(check, "text files", CLEAN, PLANTED)
