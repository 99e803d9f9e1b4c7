"""abi_layout.py - the layout of every struct that engine and plugins share, as lines of text.

Reads the ABI headers (types.h, plugin.h, slot_*.h), has a C compiler measure what it found, and gives
"struct NAME SIZE", "  field OFFSET BYTES TYPE" and "enum NAME = VALUE" lines. A field that the reading missed shows as a
hole in its struct and is an error, so that a table can never be silently short.
Not here: what may change (gate_abi.py).
SPDX-License-Identifier: MIT
"""
import os
import re
import subprocess
import tempfile

import gate

FOLDER = "core/include/backplane"


class LayoutError(Exception):
    """The headers cannot be read or do not compile."""


def abi_headers(folder):
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [n for n in names if n in ("types.h", "plugin.h") or re.fullmatch(r"slot_\w+\.h", n)]


FUNCTION = re.compile(r"^(?P<result>.*?)\(\s*\*\s*(?P<name>\w+)\s*\)\s*\((?P<params>.*)\)$", re.S)


def spaced(text):
    text = re.sub(r"\s*([(),*])\s*", r"\1", re.sub(r"\s+", " ", text.strip()))
    return re.sub(r"(?<=\w)\*", " *", text).replace(",", ", ").replace("(*", " (*")


def declarators(statement):
    """(field, type text) of one member declaration; 'const void *a, *b' has two."""
    function = FUNCTION.match(statement.strip())
    if function:
        yield function["name"], spaced(f"{function['result']} (*)({function['params']})")
        return
    parts = statement.strip().split(",")
    first = re.match(r"^(?P<base>(?:const\s+|struct\s+|unsigned\s+)*\w+)(?P<rest>.*)$", parts[0].strip(), re.S)
    if not first:
        raise LayoutError(f"cannot read the member '{statement.strip()}'")
    for declarator in [first["rest"], *parts[1:]]:
        m = re.match(r"^\s*(?P<stars>(?:\*\s*(?:const\s*)?)*)(?P<name>\w+)\s*(?P<array>(?:\[[^\]]*\])*)\s*$", declarator)
        if not m:
            raise LayoutError(f"cannot read '{declarator}' of the member '{statement.strip()}'")
        yield m["name"], spaced(first["base"] + m["stars"] + m["array"])


def preprocessed(include, headers, compiler):
    """The text of the ABI headers alone, macros expanded, in the order of inclusion."""
    program = "".join(f'#include "backplane/{h}"\n' for h in headers)
    run = subprocess.run([*compiler, "-std=c11", "-E", "-I", include, "-"], input=program, capture_output=True,
                         text=True, check=False)
    if run.returncode != 0:
        raise LayoutError(f"the headers cannot be preprocessed: {run.stderr.strip()[:600]}")
    ours, lines = False, []
    for line in run.stdout.splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            ours = os.path.dirname(marker[1]) == os.path.join(include, "backplane")
        elif ours and not line.startswith("#"):
            lines.append(line)
    return "\n".join(lines)


def read_structs(text):
    """([(struct, [(field, type)])], [enumerator])"""
    structs = []
    for m in re.finditer(r"\bstruct\s+(bp_\w+)\s*\{([^{}]*)\}\s*;", text):
        fields = [f for s in m[2].split(";") if s.strip() for f in declarators(s)]
        structs.append((m[1], fields))
    enums = []
    for m in re.finditer(r"\benum\s*(?:bp_\w+\s*)?\{([^{}]*)\}\s*;", text):
        enums += re.findall(r"\b(BP_\w+)\b\s*=", m[1])
    return structs, enums


PROBE_HEAD = """#include <stdio.h>
#define F(T, f, t) printf("  %s %zu %zu %s\\n", #f, offsetof(T, f), sizeof(((T *)0)->f), t);
#define E(e) printf("enum %s = %lld\\n", #e, (long long)(e));
"""


def probe(structs, enums, headers):
    lines = [f'#include "backplane/{h}"' for h in headers] + [PROBE_HEAD, "int main(void)\n{"]
    for name, fields in structs:
        lines.append(f'    printf("struct {name} %zu\\n", sizeof(struct {name}));')
        lines += [f'    F(struct {name}, {f}, "{t}")' for f, t in fields]
    lines += [f"    E({e})" for e in enums]
    return "\n".join([*lines, "    return 0;\n}\n"])


def check_holes(lines):
    """Members are naturally aligned, so a gap of eight bytes or more is a member that was not read."""
    name, end = "", 0
    for line in [*lines, "struct end 0"]:
        word = line.split()
        if word[0] == "struct":
            if name and end != size:
                raise LayoutError(f"struct {name}: {size} bytes, but the last member read ends at {end}")
            name, size, end = word[1], int(word[2]), 0
            if name == "end":
                break
        elif line.startswith("  "):
            if int(word[1]) - end >= min(8, max(int(word[2]), 4)):
                raise LayoutError(f"struct {name}: bytes {end} to {word[1]} before {word[0]} belong to no member")
            end = int(word[1]) + int(word[2])
        else:
            break


def layout(include, compiler):
    """The lines for the headers in INCLUDE/backplane; [] when there are none."""
    folder = os.path.join(include, "backplane")
    headers = abi_headers(folder)
    if not headers:
        return []
    structs, enums = read_structs(preprocessed(include, headers, compiler))
    if not structs:
        return []
    with tempfile.TemporaryDirectory() as work:
        source, program = os.path.join(work, "probe.c"), os.path.join(work, "probe")
        with open(source, "w", encoding="utf-8") as f:
            f.write(probe(structs, enums, headers))
        built = subprocess.run([*compiler, "-std=c11", "-I", include, source, "-o", program],
                               capture_output=True, text=True, check=False)
        if built.returncode != 0:
            raise LayoutError(f"the headers do not compile: {built.stderr.strip()[:600]}")
        lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    check_holes(lines)
    return lines


def parse(lines):
    """({struct: (size, [(field, offset, bytes, type)])}, {enumerator: value})"""
    structs, enums, at = {}, {}, None
    for line in lines:
        if line.startswith("struct "):
            _, at, size = line.split()
            structs[at] = (int(size), [])
        elif line.startswith("enum "):
            _, name, _, value = line.split()
            enums[name] = int(value)
        elif line.startswith("  "):
            field, offset, size, text = line.strip().split(" ", 3)
            structs[at][1].append((field, int(offset), int(size), text))
    return structs, enums
