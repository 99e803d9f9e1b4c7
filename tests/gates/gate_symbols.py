"""gate_symbols.py - what the compiled libraries define and call.

Core: every global symbol starts with bp_ or bpi_; no writable data at file scope (N ranks share one process); no call
of the C library's allocator, of exit, abort, printf, getenv outside core/base; dlopen only in core/loader. Plugins:
exactly one exported symbol. Reads objdump's symbol table, because there "const, but relocated" (.data.rel.ro) can be
told from "writable".
SPDX-License-Identifier: MIT
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

import gate

PREFIXES = ("bp_", "bpi_")
PLUGIN_EXPORT = "bp_plugin_query_v1"
WRITABLE = re.compile(r"^(\.data|\.bss|\.tdata|\.tbss|\*COM\*|\.sdata|\.sbss)(?!\.rel\.ro)")
BANNED = {"malloc", "calloc", "realloc", "free", "posix_memalign", "aligned_alloc", "strdup", "strndup", "exit",
          "_exit", "abort", "printf", "vprintf", "puts", "putchar", "stdout", "stderr", "getenv", "secure_getenv", "setenv",
          "strtok", "system", "strcpy", "strcat", "sprintf", "__printf_chk", "__sprintf_chk", "rand", "srand"}
LOADER_ONLY = {"dlopen", "dlmopen", "dlsym", "dlclose"}
# address, flags (7 characters), section, size, version (of dynamic symbols, where a version script was used), name
ENTRY = re.compile(r"^[0-9a-f]+ (.{7}) (\S+)\t([0-9a-f]+)\s+(?:[^.\s]\S*\s+)?(?:\.hidden )?(?:\.protected )?(\S+)$")


def symbols(path, dynamic=False):
    """(flags, section, size, name) of a library's symbols, section and file names left out."""
    out = subprocess.run(["objdump", "-T" if dynamic else "-t", path], capture_output=True, text=True, check=True)
    for line in out.stdout.split("\n"):
        m = ENTRY.match(line)
        if m and "f" not in m.group(1)[5:] and not (m.group(1)[5] == "d" and m.group(4).startswith(".")):
            yield m.group(1), m.group(2), int(m.group(3), 16), m.group(4)


def read_allowed(path):
    """Lines 'symbol reason'; a symbol without a reason is refused."""
    allowed = {}
    if path and os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            for line in f:
                if line.strip() and not line.startswith("#"):
                    symbol, _, reason = line.strip().partition(" ")
                    if not reason:
                        raise SystemExit(f"{path}: {symbol} has no reason")
                    allowed[symbol] = reason
    return allowed


def check_core(library, report, allowed, used):
    name = os.path.basename(library)
    room = re.sub(r"^lib(bp_)?|\.a$", "", name)
    for flags, section, _, symbol in symbols(library):
        report.checked += 1
        if section == "*UND*":
            if symbol in BANNED and room != "base":
                report.bad(name, 0, f"calls {symbol}, which is not for core: use core/base")
            if symbol in LOADER_ONLY and room != "loader":
                report.bad(name, 0, f"calls {symbol}, which belongs to core/loader alone")
            continue
        plain = re.sub(r"\.\d+$", "", symbol)  # static variables of functions carry a number
        if flags[0] in "gu!" or flags[1] == "w" or section == "*COM*":
            if not symbol.startswith(PREFIXES):
                report.bad(name, 0, f"global symbol {symbol} starts with neither bp_ nor bpi_")
        if WRITABLE.match(section):
            if plain in allowed:
                used.add(plain)
            else:
                report.bad(name, 0, f"writable data at file scope: {symbol} in {section}")


def check_plugin(path, report):
    name = os.path.basename(path)
    exported = [s for f, section, _, s in symbols(path, dynamic=True) if section != "*UND*" and f[0] in "gu"]
    report.checked += len(exported)
    if exported != [PLUGIN_EXPORT]:
        report.bad(name, 0, f"exports {', '.join(exported) or 'nothing'}; exactly {PLUGIN_EXPORT} is expected")


def check_all(libraries, plugins, allow_file, report):
    allowed, used = read_allowed(allow_file), set()
    for library in libraries:
        if not os.path.exists(library):
            report.bad(library, 0, "is not built: build all targets, then run the gates")
            continue
        check_core(library, report, allowed, used)
    for plugin in plugins:
        check_plugin(plugin, report)
    for symbol in sorted(set(allowed) - used):
        report.bad(os.path.basename(allow_file), 0, f"{symbol} is allowed but no longer there: remove the line")


def find_plugins(folder):
    found = []
    for where, _, names in os.walk(folder):
        found += [os.path.join(where, n) for n in names if re.match(r"backplane-.*\.so$", n)]
    return sorted(found)


CLEAN_C = """
typedef int fn(int);
static int one(int a) { return a + 1; }
static fn *const TABLE[] = {one};
static const char *const NAMES[] = {"a", "b"};
int bpi_get(int i) { return TABLE[i & 0](i) + NAMES[i & 1][0]; }
"""
PLANTED = [
    ("a global without prefix", "int get(int i) { return i; }", "starts with neither"),
    ("a weak global without prefix", "__attribute__((weak)) int get(int i) { return i; }", "starts with neither"),
    ("a counter", "static int counter; int bpi_n(void) { return ++counter; }", "writable data"),
    ("a counter in a function", "int bpi_n(void) { static int n; return ++n; }", "writable data"),
    ("initialised data", "int bpi_v = 3;", "writable data"),
    ("thread-local data", "_Thread_local int bpi_t;", "writable data"),
    ("initialised thread-local data", "_Thread_local int bpi_t = 4;", "writable data"),
    ("a common symbol", "int bpi_c;", "writable data"),
    ("malloc", "void *malloc(unsigned long); void *bpi_m(void) { return malloc(3); }", "calls malloc"),
    ("exit behind a macro", "void exit(int);\n#define STOP exit\nvoid bpi_s(void) { STOP(1); }", "calls exit"),
    ("getenv by address", "char *getenv(const char *); void *bpi_g(void) { return (void *)getenv; }", "calls getenv"),
    ("printf that becomes puts", "int printf(const char *, ...);\nvoid bpi_p(void) { printf(\"x\\n\"); }", "calls puts"),
    ("dlopen", "void *dlopen(const char *, int); void *bpi_d(void) { return dlopen(\"x\", 0); }", "calls dlopen"),
]


def build(cc, folder, code, kind):
    source, target = os.path.join(folder, "x.c"), os.path.join(folder, "libbp_kv.a" if kind == "a" else "backplane-x.so")
    with open(source, "w", encoding="utf-8") as f:
        f.write(code)
    if kind == "a":
        subprocess.run([*cc, "-O2", "-fPIC", "-w", "-c", source, "-o", source + ".o"], check=True)
        subprocess.run(["ar", "rcs", target, source + ".o"], check=True)
    else:
        script = os.path.join(folder, "x.map")
        with open(script, "w", encoding="utf-8") as f:
            f.write("{ global: *; };\n")  # adds the column of versions, and hides nothing
        versions = [f"-Wl,--version-script={script}"] if kind == "versioned" else []
        subprocess.run([*cc, "-O2", "-fPIC", "-w", "-shared", source, "-o", target, *versions], check=True)
    return target


def self_test(cc):
    cases = [("the clean library", CLEAN_C, None, "a"), ("the clean plugin", f"int {PLUGIN_EXPORT}(void) {{ return 1; }}",
                                                         None, "so")]
    cases += [(what, CLEAN_C + code, words, "a") for what, code, words in PLANTED]
    cases += [("the clean plugin, versioned", f"int {PLUGIN_EXPORT}(void) {{ return 1; }}", None, "versioned"),
              ("two exports, versioned", f"int {PLUGIN_EXPORT}; int helper;", "exactly", "versioned"),
              ("a plugin with two exports", f"int {PLUGIN_EXPORT}; int helper;", "exactly", "so"),
              ("a plugin with none", "static int x;", "exports nothing", "so")]
    failures = 0
    for what, code, words, kind in cases:
        with tempfile.TemporaryDirectory() as folder:
            target = build(cc, folder, code, kind)
            report = gate.Report()
            check_all([target] if kind == "a" else [], find_plugins(folder), None, report)
        ok = not report.violations if words is None else any(words in v for v in report.violations)
        print(("as it should be: " if ok else "WRONG: ") + what, "" if ok else report.violations)
        failures += not ok
    with tempfile.TemporaryDirectory() as folder:
        allow = os.path.join(folder, "allow.txt")
        with open(allow, "w", encoding="utf-8") as f:
            f.write("counter it is counted here\nghost it is gone\n")
        report = gate.Report()
        check_all([build(cc, folder, PLANTED[2][1], "a")], [], allow, report)
        ok = len(report.violations) == 1 and "ghost" in report.violations[0]
        print("as it should be: the allow-list" if ok else f"WRONG: the allow-list {report.violations}")
        failures += not ok
    print(f"self-test: {len(cases) + 1} cases, {failures} failures")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--build", help="build folder in which plugins are looked for")
    parser.add_argument("--allow", help="file of symbols that may be writable, each with its reason")
    parser.add_argument("--sanitized", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("libraries", nargs="*")
    args = parser.parse_args()
    if shutil.which("objdump") is None:
        print("SKIP: objdump (package binutils) is not installed")
        sys.exit(77)
    if args.self_test:
        sys.exit(self_test(args.cc.split()))
    if args.sanitized:
        print("SKIP: sanitizers add symbols and writable data of their own; the plain build is looked at instead")
        sys.exit(77)
    report = gate.Report()
    # Only those that are installed: tests build broken ones on purpose.
    plugins = find_plugins(os.path.join(args.build, "lib", "backplane", "plugins")) if args.build else []
    check_all(args.libraries, plugins, args.allow, report)
    sys.exit(report.finish(f"symbols of {len(args.libraries)} core libraries and {len(plugins)} plugins"))


if __name__ == "__main__":
    main()
