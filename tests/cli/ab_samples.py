"""ab_samples.py - results of `backplane ab` as its report may get them: a fault, agreement, two whole runs, nothing at all,
and one written by an enemy. Always the same numbers.

SPDX-License-Identifier: MIT
"""
import copy
import math
import random

# slot, op, tap, microseconds, bytes
LAYER = [("dense", "rms", "attn.norm", 40, 4096), ("quant", "matmul", "attn.q", 310, 1 << 20),
         ("quant", "matmul", "attn.kv_a", 120, 1 << 19), ("mla.common", "cache_write", "attn.kv", 25, 8192),
         ("mla.decode", "run", "attn.out", 240, 1 << 19), ("quant", "matmul", "attn.proj", 280, 1 << 20),
         ("dense", "rms", "ffn.norm", 40, 4096), ("moe", "route", "moe.router", 30, 65536),
         ("moe", "run", "moe.out", 900, 3 << 20)]
SPEED = {"mla.decode": 0.41, "moe": 0.78, "quant": 1.0, "dense": 1.25}
N_TOK = 24


def short(v):
    return None if v is None else float(f"{v:.3g}")


def interval(us):
    return {"median": short(us), "lo": short(us * 0.96), "hi": short(us * 1.05)}


def ops(draw, n_layer, verdict):
    """verdict(slot, op, layer, tap): (status, times the baseline or None for NaN, flips), or None where all is well."""
    out = []

    def add(slot, op, layer, tap, us, n_bytes):
        base = short(10 ** draw.uniform(-3.3, -2.5))
        said = verdict(slot, op, layer, tap) or ("ok", draw.choice([0, 0.3, 0.7, 0.95, 1.1, 1.6]), [])
        status, times, flips = said
        error = None if times is None else base * times
        a = us * draw.uniform(0.9, 1.1)
        out.append({"slot": slot, "op": op, "layer": layer, "tap": tap, "calls": N_TOK,
                    "max_abs": short(error and error * 3.1), "max_rel": short(error and error * 9), "norm_rel": short(error),
                    "baseline_norm_rel": base, "worst_row": draw.randrange(N_TOK), "flips": flips, "n_flips": len(flips), "status": "fail" if status == "inherited" else status,
                    "made_here": status != "inherited", "provider_a": "ref", "provider_b": "other",
                    "text": "" if status != "fail" else f"{slot}.{op} differs in {tap}; the baseline does not",
                    "time_a_us": interval(a), "time_b_us": interval(a * SPEED.get(slot, 1.02)), "bytes": n_bytes,
                    "flops": 3 * n_bytes})

    add("dense", "embed", -1, "embed", 12, 16384)
    for layer in range(n_layer):
        for slot, op, tap, us, n_bytes in LAYER:
            if slot != "moe" or layer > 0:
                add(slot, op, layer, f"blk.{layer}.{tap}", us, n_bytes)
    add("dense", "rms", -1, "output.norm", 40, 4096)
    add("quant", "matmul", -1, "logits", 700, 2 << 20)
    return out


def side(attn, version, path, kv):
    slots = [{"slot": "quant", "layers": None, "provider": "ref"}, {"slot": "mla.decode", "layers": "0-11", "provider": attn},
             {"slot": "moe", "layers": None, "provider": "ref"}]
    group = {"layers": "0-11", "layout": "latent." + kv, "index_layout": None, "token_bytes": 1152, "index_token_bytes": 0}
    return {"settings": {"slots.mla.decode": attn, "kv.dtype": kv},
            "backends": {"slots": slots, "wrappers": [],
                         "kv": {"dtype": kv, "layout": "latent." + kv, "asked": "auto", "why": "the first that all share",
                                "groups": [group]},
                         "device": {"kind": "host", "ordinal": 0, "name": None},
                         "plugins": [{"name": attn, "version": version, "file": path}]},
            "model": "models/bp-tiny-glm-dsa-Q4_K_M.gguf"}


def logits(draw, n, level, hits=(), lost=()):
    rows = []
    for i in range(n):
        kl = level * 10 ** draw.gauss(0, 0.5) * (60 if i in hits else 1)
        row = {"pos": i, "kl": short(kl), "max_abs": short(8 * math.sqrt(kl)), "a_id": 1000 + i, "b_id": 1000 + i}
        if i in hits:
            row.update(b_id=77 + i, a_text=" dragon", b_text=" the")
        if i in lost:
            row.update(kl=None, max_abs=None)
        rows.append(row)
    known = [r["kl"] for r in rows if r["kl"] is not None]
    return {"max_abs": max(r["max_abs"] for r in rows if r["max_abs"] is not None), "mean_abs": 0.0113,
            "kl": short(sum(known) / n), "kl_ba": short(sum(known) / n * 1.04), "top_k": 10, "topk_overlap": 0.9837 if hits else 1.0,
            "by_position": rows}


def fail():
    draw = random.Random(5)
    rounding = [{"row": 3, "a": 12, "b": 41, "gap": 3.1e-8, "wide": False}, {"row": 11, "a": 7, "b": 2, "gap": 1.2e-7, "wide": False}]

    def verdict(slot, op, layer, _):
        if slot == "mla.decode" and layer in (3, 7, 9):
            return ("fail", {3: 412.0, 7: 14.0, 9: None}[layer], [])
        if op == "route" and layer in (5, 8):
            return ("flip", 0.9, rounding)
        if op == "route" and layer == 10:
            return ("fail", 3.0, [{"row": 5, "a": 1, "b": 60, "gap": 0.21, "wide": True}])
        return None
    return {"mode": "shadow", "a": side("ref", "0.9.0", "(built in)", "f32"),
            "b": side("attn_flash", "0.2.1", "/usr/lib/backplane/plugins/backplane-attn-flash.so", "bf16"),
            "prompt": {"text": 'Once upon a time there was a little dragon.\nHe said: "1 2 3".', "ids": list(range(100, 124))},
            "ops": ops(draw, 12, verdict),
            "first_difference": {"slot": "mla.decode", "op": "run", "layer": 3, "tap": "blk.3.attn.out", "row": 17,
                                 "text": "412 times the baseline, worst in row 17.", "made_here": True},
            "logits": logits(draw, N_TOK, 2e-4, {14, 19}, {22}),
            "timing": {"load_ms": 312.4, "a_s": 0.61, "b_s": 0.48, "total_s": 2.3, "steps_a": 3, "steps_b": 3,
                       "by_op": [{"slot": "moe", "op": "run", "calls": 264, "a_us": 236000.0, "b_us": 184000.0, "b_over_a": 0.78,
                                  "bytes": 830472192, "flops": 2491416576}]},
            "memory": {"a": {"cache": 1 << 20, "weights": 41200000, "buffers": 5 << 20, "scratch": 0},
                       "b": {"cache": 1 << 19, "weights": 43900000, "buffers": 5 << 20, "scratch": 65536}, "compare": 7 << 20},
            "verdict": {"pass": False, "text": "4 of 109 ops are beyond their bound; the best token differs at 2 of 24 positions.",
                        "thresholds": {"precision": "bf16", "max_kl": 0.01, "max_abs": None}}}


def agree():
    draw = random.Random(6)
    r = dict(fail(), ops=ops(draw, 6, lambda *_: None), first_difference=None, logits=logits(draw, 120, 3e-6))
    r["logits"]["by_position"][0].update(kl=0.0, max_abs=0.0)
    r["verdict"] = {"pass": True, "text": "All 55 ops are within their bound.", "thresholds": {"max_kl": 0.01}}
    return r


def deep():
    """As many layers and positions as a large model has."""
    draw = random.Random(8)
    r = dict(agree(), ops=ops(draw, 61, lambda *_: None), logits=logits(draw, 4096, 3e-6))
    return r


def free():
    draw = random.Random(7)

    def verdict(slot, _, layer, tap):
        if layer == 2 and tap.endswith("proj"):
            return ("fail", 35.0, [])
        if layer > 2 or layer == 2 and slot == "moe" or layer == -1 and tap != "embed":
            return ("inherited", draw.uniform(4, 60), [])
        return None
    r = dict(fail(), mode="free", ops=ops(draw, 4, verdict), b=None, timing={},
             logits=logits(draw, N_TOK, 0.02, {9, 10, 15, 21}))
    for op in r["ops"]:
        del op["time_a_us"], op["time_b_us"]
    r["first_difference"] = {"slot": "quant", "op": "matmul", "layer": 2, "tap": "blk.2.attn.proj", "row": 4,
                             "text": "The runs part at blk.2.attn.proj.", "made_here": True}
    return r


def empty():
    return {"mode": "shadow", "a": None, "b": {}, "prompt": {}, "ops": [], "first_difference": None, "logits": None,
            "timing": None, "memory": [], "verdict": None}


def odd():
    """Nothing has the type it should have."""
    return {"mode": 3, "a": [], "b": "x", "prompt": [1], "ops": [None, 7, "op", {}, {"layer": "3", "flips": {}, "status": 1,
            "time_a_us": 4, "norm_rel": "nan"}, {"slot": "s", "op": "o", "layer": 0, "status": "fail", "norm_rel": None,
            "flips": [None, 1, {}]}], "first_difference": {}, "logits": {"by_position": [None, {"kl": None}, {"pos": "a"}]},
            "timing": [1, 2], "memory": "much", "verdict": {"pass": "yes", "thresholds": {"x": [], "y": None, "z": True}}}


def zero():
    """ref against ref: no error at all, and a baseline of zero."""
    r = agree()
    for op in r["ops"]:
        op.update(max_abs=0.0, max_rel=0.0, norm_rel=0.0, baseline_norm_rel=0.0)
    for row in r["logits"]["by_position"]:
        row.update(kl=0.0, max_abs=0.0)
    r["logits"].update(kl=0.0, kl_ba=0.0, max_abs=0.0, mean_abs=0.0)
    return r


def single():
    """One call of each op: medians whose intervals have no width."""
    r = agree()
    for op in r["ops"]:
        op["calls"] = 1
        for key in ("time_a_us", "time_b_us"):
            op[key] = dict.fromkeys(("median", "lo", "hi"), op[key]["median"])
    r["logits"]["topk_overlap"] = 0.99999
    return r


# Each would set window.owned, or ask somebody, if it ever became markup, script, style or an address.
POISON = ["</script><script>window.owned=1</script>", "<!--<script>", "-->", "<img src=x onerror=window.owned=1>",
          "\"><svg onload=window.owned=1>", "' onfocus=window.owned=1 autofocus x='", "&lt;b&gt;&#60;i&#62;", "</style><style>*{color:red}",
          "]]><script>window.owned=1</script>", "{{constructor.constructor('window.owned=1')()}}", "javascript:window.owned=1",
          "${window.owned=1}`", "\u2028window.owned=1\u2029", "\u202egnp.exe", "\x00\x01\x1b[31m\x7f\x85", "@@data@@", "</title><h1>",
          "<base href=//example.invalid/>", "<meta http-equiv=refresh content=0;url=//example.invalid/>", "\U0001f409 \u0000",
          "__proto__", "A" * 5000]


def poison(v, draw):
    """Every string of it, and every key of a free object, replaced by something hostile."""
    if isinstance(v, str):
        return draw.choice(POISON)
    if isinstance(v, list):
        return [poison(x, draw) for x in v]
    if isinstance(v, dict):
        return {k: poison(x, draw) for k, x in v.items()}
    return v


def hostile():
    draw = random.Random(9)
    r = fail()
    keys = [p for p in POISON if "\x00" not in p]  # the reader of JSON has no such keys
    for i, op in enumerate(r["ops"]):
        for k, key in enumerate(("slot", "op", "tap", "status")):
            if key != "status" or i % 7 == 0:
                op[key] = POISON[(i + k) % len(POISON)]
    for i, row in enumerate(r["logits"]["by_position"]):
        row.update(a_text=POISON[i % len(POISON)], b_text=POISON[-1 - i % len(POISON)])
    for key in ("a", "b", "prompt", "first_difference", "verdict", "memory", "timing"):
        r[key] = poison(copy.deepcopy(r[key]), draw)
    for key in ("a", "b"):
        r[key]["settings"] = {p: p for p in keys}
    r["verdict"]["thresholds"] = {p: p for p in keys}
    r["memory"] = {p: {q: 1.5 for q in POISON[:3]} for p in keys}
    r["mode"] = POISON[0]
    r["prompt"]["text"] = "\n".join(POISON)
    return r


ALL = {"fail": fail, "agree": agree, "deep": deep, "free": free, "empty": empty, "odd": odd, "zero": zero, "single": single, "hostile": hostile}
