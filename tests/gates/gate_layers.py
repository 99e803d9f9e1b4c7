"""gate_layers.py - arrows between rooms only point to rooms listed above; plugins, tools and sdk stay outside.

Looks at #include lines only: what a room links is checked by the build itself.
SPDX-License-Identifier: MIT
"""
import os
import re

import gate

ROOMS = ["base", "config", "gguf", "block", "token", "model", "quantize", "loader", "ref", "kv", "engine", "compare", "doctor"]
C_LIKE = (".c", ".h", ".inc", ".def", ".cc", ".cpp", ".hpp", ".cu", ".cuh")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(.*?)[ \t]*$', re.M)
FOREIGN = re.compile(r"^(cuda|cublas|nccl|mpi|hip|sycl)[^/]*\.(h|hpp|cuh)$|^(cuda|cooperative_groups|nccl|cutlass|cute)/")


def includes(root, name):
    """(line, form, target) of each include; form is '<' or '"', or '?' for a macro."""
    text = gate.without_comments(gate.read_text(root, name) or "", keep_strings=True)
    for m in INCLUDE.finditer(text):
        what, line = m.group(1), gate.line_of(text, m.start(1))
        if len(what) > 2 and what[0] in '<"':
            yield line, what[0], what[1:].split('>' if what[0] == '<' else '"')[0]
        else:
            yield line, '?', what


def inside(root, folder, includer, target):
    """Is the target a file below `folder`, seen from the including file or from the folder itself?"""
    top = os.path.realpath(os.path.join(root, folder))
    for base in (os.path.join(root, os.path.dirname(includer)), top):
        path = os.path.realpath(os.path.join(base, target))
        if os.path.isfile(path) and os.path.commonpath([path, top]) == top:
            return True
    return False


def core_sentence(root, name, room, form, target):
    first = target.split("/")[0]
    if FOREIGN.search(target):
        return f"core must not include {target}"
    if target == "dlfcn.h" and room != "loader":
        return "only core/loader may include dlfcn.h"
    if "/" in target and first in ROOMS:
        if room == "include":
            return f"a public header must not include {target} of room {first}"
        if ROOMS.index(first) > ROOMS.index(room):
            return f"room {room} must not include {target}: {first} is listed below it"
        if target.endswith("_priv.h") and first != room:
            return f"{target} is private to room {first}"
        return None
    if form == '<' or first == "backplane":
        return None
    if not inside(root, f"core/{room}", name, target):
        return f"{target} is neither in core/{room}, nor public, nor \"room/file.h\""
    return None


def outside_sentence(root, name, folder, form, target):
    first = target.split("/")[0]
    if first == "backplane" and ".." not in target:
        if not folder.startswith("plugins/") or os.path.isfile(os.path.join(root, "core/include", target)):
            return None
        if target.startswith("backplane/cuda/") or inside(root, folder, name, target):
            return None
        return f"{target} is no public header"
    if inside(root, folder, name, target):
        return None
    # A tool with folders of its own names its headers from its top: tools/check/cases/x.c includes "kit.h".
    if folder == "tools" and inside(root, "/".join(name.split("/")[:2]), name, target):
        return None
    if form == '<' and first not in ROOMS and ".." not in target:
        return None
    return f"{target} is neither a public header nor a file of {folder}"


def check(root, report):
    for name in gate.source_files(root):
        parts = name.split("/")
        if not name.endswith(C_LIKE) or parts[0] not in ("core", "tools", "sdk", "plugins") or len(parts) < 3:
            continue
        if parts[0] == "core" and parts[1] not in ROOMS and parts[1] != "include":
            report.bad(name, 0, f"core/{parts[1]} has no place in the order of rooms")
            continue
        for line, form, target in includes(root, name):
            report.checked += 1
            if form == '?':
                report.bad(name, line, f"include of a macro, {target}, cannot be followed")
                continue
            if parts[0] == "core":
                sentence = core_sentence(root, name, parts[1], form, target)
            else:
                folder = "/".join(parts[:2]) if parts[0] == "plugins" else parts[0]
                sentence = outside_sentence(root, name, folder, form, target)
            if sentence:
                report.bad(name, line, sentence)


CLEAN = {
    "core/include/backplane/types.h": "#include <stdint.h>\n",
    "core/base/base.h": '#include "backplane/types.h"\n',
    "core/base/base.c": '#include "base/base.h"\n',
    "core/kv/kv_priv.h": "",
    "core/kv/kv.c": '#include "base/base.h"\n#include "kv_priv.h"\n/* #include "engine/engine.h" */\n',
    "core/loader/loader.c": "#include <dlfcn.h>\n",
    "core/engine/engine.h": "",
    "tools/cli/cli.h": "",
    "tools/cli/main.c": '#include <backplane/types.h>\n#include "cli.h"\n#include "cli/cli.h"\n',
    "plugins/a/internal.h": "",
    "tools/kit/kit.h": "#include <stdio.h>\n",
    "tools/kit/cases/x.c": '#include "kit.h"\n',
    "plugins/a/plugin.c": '#include "backplane/types.h"\n#include "internal.h"\n',
    "plugins/b/plugin.c": "#include <stdio.h>\n",
}
PLANTED = [
    ("an arrow down", {"core/base/up.c": '#include "kv/kv_priv.h"\n'}, "listed below"),
    ("an arrow down in angle brackets", {"core/kv/x.c": "#include <engine/engine.h>\n"}, "listed below"),
    ("another room's private header", {"core/engine/x.c": '#include "kv/kv_priv.h"\n'}, "private to room kv"),
    ("a path that climbs out", {"core/kv/x.c": '#include "../engine/engine.h"\n'}, "neither in core/kv"),
    ("dlfcn outside the loader", {"core/kv/x.c": "#include <dlfcn.h>\n"}, "only core/loader"),
    ("CUDA in core", {"core/engine/x.c": "#include <cuda_runtime.h>\n"}, "core must not include"),
    ("MPI in core", {"core/engine/x.c": "#  include <mpi.h>\n"}, "core must not include"),
    ("an unknown room", {"core/attic/x.c": "int x;\n"}, "no place"),
    ("a public header that sees a room", {"core/include/backplane/x.h": '#include "base/base.h"\n'}, "public header"),
    ("a tool that sees a room", {"tools/cli/x.c": '#include "base/base.h"\n'}, "neither a public header"),
    ("a tool that sees a room, angle", {"tools/cli/x.c": "#include <base/base.h>\n"}, "neither a public header"),
    ("a tool that climbs", {"tools/cli/x.c": '#include "../../core/base/base.h"\n'}, "neither a public header"),
    ("sdk that sees a room", {"sdk/t/x.c": '#include "base/base.h"\n'}, "neither a public header"),
    ("a plugin that sees another", {"plugins/b/x.c": '#include "../a/internal.h"\n'}, "neither a public header"),
    ("a plugin that sees core", {"plugins/b/x.cu": '#include "base/base.h"\n'}, "neither a public header"),
    ("a plugin with a made-up header", {"plugins/b/x.c": '#include "backplane/secret.h"\n'}, "no public header"),
    ("an include of a macro", {"core/kv/x.c": "#include HIDDEN\n"}, "macro"),
]

if __name__ == "__main__":
    gate.main(check, "includes", CLEAN, PLANTED)
