"""gpu_errors.py - the part "errors" of tests/gpu/run: what a user reads who has no GPU, too little memory, a plugin of another
architecture, or loses the device in the middle of a run. SPDX-License-Identifier: MIT
"""
import os
import re
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def long_context():
    """A model of the zoo with a context that no machine holds."""
    sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
    import gguf_edit  # pylint: disable=import-error
    model = gguf_edit.read(os.path.join(ROOT, "tests", "data", "zoo", "zoo-glm5-512.gguf"))
    model.kv["glm-dsa.context_length"].value = 1 << 22
    path = os.path.join(tempfile.mkdtemp(prefix="bp-long-"), "long.gguf")
    gguf_edit.write(path, model)
    return path


def errors(r):
    r.need("bin", "backplane")
    blind = dict(r.env, CUDA_VISIBLE_DEVICES="")
    run = [r.path("bin", "backplane"), "run", "-m", r.bundled(), "-p", "a", "-n", "2"]
    cases = [("no device is visible", [*run, "-s", "engine.device=cuda:0"], blind)]
    if not r.gpu:
        cases += [("no such ordinal", [*run, "-s", "engine.device=cuda:77"], r.env),
                  ("more memory than there is", [r.path("bin", "backplane"), "verify", "-m", long_context(), "--golden",
                                                 os.path.join(ROOT, "tests", "data", "zoo", "zoo-glm5-512.golden.gguf"), *r.cuda, "-s", "engine.ctx=1048576", "-s", "engine.max_seqs=1024", "-s",
                                                 "engine.batch_tokens=1024"], r.env)]
    for title, words, env in cases:
        status, out, err = r.command(words, 40, env)
        lines = [line for line in err.splitlines() if line.strip()]
        told = "memory" not in title or re.search(r"needs \d+ bytes .* \d+ are free", err)
        if status in (2, 3) and len(lines) == 1 and len(lines[0]) > 30 and told:
            r.good(f"{title}: status {status}: {lines[0]}")
        else:
            r.fail(f"{title}: status {status}, {len(lines)} lines: {err.strip()[:400]!r}")
    if not r.gpu:
        hardware_errors(r, run)
    if "device_cuda" in r.plugins():
        status, out, err = r.command([r.path("bin", "backplane-check"), r.plugins()["device_cuda"], "--gpu", "77"], 60)
        (r.good if status == 2 and err.count("\n") == 1 else r.fail)(f"the kit without that device: {err.strip()[:300]}")


def hardware_errors(r, run):
    """A kernel that traps in the middle of a run, and one that was built for another architecture: a wrapper starts them, and the
    sentence names whose call it was."""
    for name, after, expected in (("lost", 40, r"the device is lost to this process|the device was lost"),
                                  ("foreign", 2, r"was not built for this device")):
        file = r.path("lost", f"backplane-{name}.so")
        if not os.path.exists(file):
            r.fail(f"the wrapper '{name}' was not packed")
            continue
        for graph in ("off", "auto"):
            status, out, err = r.command([*run[:-1], "20", *r.cuda, "-s", f"plugin.{name}.file={file}", "-s", f"wrap.quant={name}", "-s",
                                          f"plugin.{name}.after={after}", "-s", f"engine.graph={graph}"], 60)
            lines = [line for line in err.splitlines() if line.startswith("backplane")]
            good = status in (2, 3) and len(lines) == 1 and re.search(expected, lines[0]) and "CUDA error" in lines[0]
            (r.good if good else r.fail)(f"{name}, engine.graph = {graph}: status {status}: {err.strip()[-400:]}")
