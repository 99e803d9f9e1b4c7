"""layout_edit.py - what derive_variants.py and layout_faults.py share: lists of variants, and the edits they are made of.

An edit that finds nothing to change raises, because a variant that equals its base would prove nothing.
SPDX-License-Identifier: MIT
"""
import random
from array import array

import gguf_edit as ge

INDEX = ("indexer.attn_q_b.weight", "indexer.attn_k.weight", "indexer.k_norm.weight", "indexer.k_norm.bias",
         "indexer.proj.weight")
NEXTN_ALWAYS = ("eh_proj", "enorm", "hnorm", "shared_head_norm")
NEXTN_FULL = NEXTN_ALWAYS + ("embed_tokens", "shared_head_head")

VARIANTS, DIFFERENT, REFUSED, BASES = [], [], [], []
MODELS = {}  # name: model as read from the zoo, and the bases made from them


def variant(name, *bases, file_settings=(), base_settings=()):
    """The function edits a copy of each base in place. It may return arguments for gguf_edit.write, or a function that
    takes (stem, model) and writes the files itself; that one returns the path to open."""
    def add(fn):
        VARIANTS.append((name, bases, fn, list(file_settings), list(base_settings)))
        return fn
    return add


def different(name, *bases):
    return lambda fn: DIFFERENT.append((name, bases, fn)) or fn


def refused(name, base, *says):
    return lambda fn: REFUSED.append((name, base, fn, says)) or fn


def base(name, zoo):
    return lambda fn: BASES.append((name, zoo, fn)) or fn


# ---- parts of edits ----


def n_blocks(m):
    return m.get("block_count")


def blk(n, suffix):
    return f"blk.{n}.{suffix}"


def legacy_keys(m):
    """Keys as they were before the latent's own widths had keys."""
    heads = m.get("attention.head_count")
    k, v = m.get("attention.key_length_mla"), m.get("attention.value_length_mla")
    m.drop("attention.key_length_mla", "attention.value_length_mla")
    m.put("attention.head_count_kv", ge.U32, heads)
    m.put("attention.key_length", ge.U32, k)
    m.put("attention.value_length", ge.U32, v)


def joint_of(m, n, value_first=False):
    """attn_kv_b of block n: per head its P key rows (k_b transposed), then its V value rows."""
    k, v = m.find(blk(n, "attn_k_b.weight")), m.find(blk(n, "attn_v_b.weight"))
    p, c, h = k.dims
    width = v.dims[1]
    ks, vs = array("H", k.data), array("H", v.data)
    out = array("H")
    for head in range(h):
        mine = ks[head * c * p:(head + 1) * c * p]
        keys = array("H")
        for row in range(p):
            keys += mine[row::p]
        values = vs[head * width * c:(head + 1) * width * c]
        out += values + keys if value_first else keys + values
    return ge.Tensor(blk(n, "attn_kv_b.weight"), [c, h * (p + width)], k.type, out.tobytes())


def make_joint(m, blocks, keep_pair=False, value_first=False):
    for n in blocks:
        names = [blk(n, "attn_k_b.weight"), blk(n, "attn_v_b.weight")]
        pair = [m.find(name) for name in names] if keep_pair else []
        m.replace(names, [joint_of(m, n, value_first)] + pair)


def flatten(m, suffix, blocks):
    for n in blocks:
        t = m.find(blk(n, suffix))
        t.dims = [t.dims[0], t.dims[1] * t.dims[2]]


def moe_blocks(m):
    return [n for n in range(n_blocks(m)) if m.has(blk(n, "ffn_gate_inp.weight"))]


def make_fused(m, blocks, keep=False, up_first=False):
    for n in blocks:
        names = [blk(n, "ffn_gate_exps.weight"), blk(n, "ffn_up_exps.weight")]
        gate, up = (m.find(name) for name in names)
        first, second = (up, gate) if up_first else (gate, up)
        e, f, x = gate.dims
        size = len(gate.data) // x
        data = b"".join(first.data[i:i + size] + second.data[i:i + size] for i in range(0, x * size, size))
        fused = ge.Tensor(blk(n, "ffn_gate_up_exps.weight"), [e, 2 * f, x], gate.type, data)
        m.replace(names, [fused] + ([gate, up] if keep else []))


def noise(like, name, rng):
    """Random numbers in the shape and type of another tensor; around 1 for norms."""
    n = 1
    for d in like.dims:
        n *= d
    middle = 1.0 if "norm" in name else 0.0
    wide = array("f", (rng.gauss(middle, 0.1) for _ in range(n))).tobytes()
    if like.type == ge.F32:
        return ge.Tensor(name, like.dims, ge.F32, wide)
    data = bytearray(2 * n)
    data[0::2], data[1::2] = wide[2::4], wide[3::4]
    return ge.Tensor(name, like.dims, ge.BF16, bytes(data))


def add_mtp(m, parts, fill=noise, joint=False):
    """A NextN block behind the trunk, in the shape of the last layer. Returns its number."""
    rng, n = random.Random(7), n_blocks(m)
    for t in [t for t in m.tensors if t.name.startswith(f"blk.{n - 1}.")]:
        m.tensors.append(fill(t, blk(n, t.name.split(".", 2)[2]), rng))
    e, embd = m.get("embedding_length"), m.find("token_embd.weight")
    shapes = {"eh_proj": ge.Tensor("", [2 * e, e], ge.BF16, b""), "embed_tokens": embd, "shared_head_head": embd}
    for part in parts:
        like = shapes.get(part, m.find("output_norm.weight"))
        m.tensors.append(fill(like, blk(n, f"nextn.{part}.weight"), rng))
    if joint:
        make_joint(m, [n])
    return n


def nan_fill(like, name, _rng):
    t = noise(like, name, random.Random(0))
    return ge.Tensor(name, t.dims, t.type, b"\xff" * len(t.data))


def counted_mtp(m, parts, fill=noise, joint=False):
    n = add_mtp(m, parts, fill, joint)
    m.put("block_count", ge.U32, n + 1)
    m.put("nextn_predict_layers", ge.U32, 1)


def drop_index(m, blocks, keys):
    dropped = [blk(n, s) for n in blocks for s in INDEX if m.has(blk(n, s))]
    if not dropped:
        raise KeyError("no index tensors")
    m.tensors = [t for t in m.tensors if t.name not in dropped]
    if keys:
        m.drop("attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k")


def convert_all(m, kind, wanted):
    """Every tensor of `wanted` types in type `kind` where that is exact; some must be."""
    n = 0
    for i, t in enumerate(m.tensors):
        new = ge.converted(t, kind) if t.type in wanted else None
        if new is not None:
            m.tensors[i] = new
            n += 1
    if n == 0:
        raise ValueError("no tensor could be converted")
    return n


def thirds(m):
    n = len(m.tensors)
    return [m.tensors[:n // 3], m.tensors[n // 3:2 * n // 3], m.tensors[2 * n // 3:]]


def add_scales(m, names, factor, per_expert=lambda n: [1.0] * n):
    """Weights times `factor`, a power of two, and companions that take it back, one number or one per expert."""
    for t in [t for t in m.tensors if any(part in t.name for part in names)]:
        wide = array("f", (v * factor for v in t.numbers()))
        t.data = ge.converted(ge.Tensor(t.name, t.dims, ge.F32, wide.tobytes()), t.type).data
        back = per_expert(t.dims[2]) if "_exps." in t.name else [1.0]
        data = array("f", (b / factor for b in back)).tobytes()
        m.tensors.append(ge.Tensor(t.name.replace(".weight", ".scale"), [len(back)], ge.F32, data))
