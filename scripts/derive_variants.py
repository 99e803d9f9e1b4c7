#!/usr/bin/env python3
"""Writes the models of the zoo again in every layout that publishers use, and in some that must be refused.

Usage: derive_variants.py ZOO OUT

OUT gets the files and variants.json, which says what each of them must do:
  pairs      {file, base, golden, file_settings, base_settings}: same logits as base, and golden is met (null: no golden)
  different  {file, base}: logits must differ from base; a comparison that cannot tell these apart proves nothing
  refused    {file, says}: must not open, and the reason holds these words
A file's name begins with the name of its base, up to the first dot, and BASE.golden.gguf in the zoo is what it must
meet. Bases named pair-... are changed models without golden values; they lie in OUT. Of shards the first is named.
Layouts are those that llama.cpp's and ik_llama.cpp's converters and gguf-split have written over the years.
"""
# SPDX-License-Identifier: MIT
import json
import os
import random
import sys
from array import array

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import gguf_edit as ge  # noqa: E402
import layout_faults  # noqa: E402,F401  (adds its rows to the lists)
from layout_edit import (BASES, DIFFERENT, INDEX, MODELS, NEXTN_ALWAYS, NEXTN_FULL, REFUSED, VARIANTS,  # noqa: E402
                         add_mtp, add_scales, base, blk, convert_all, counted_mtp, drop_index, flatten, legacy_keys,
                         make_fused, make_joint, moe_blocks, n_blocks, nan_fill, noise, thirds, variant)

DSA = ("zoo-glm5", "zoo-glm52-shared", "zoo-v32")


# ---- attention ----


@variant("joint", "zoo-v2lite", "zoo-v2-group", "zoo-v3", "zoo-v3-512", "zoo-glm47flash", "zoo-glm5", "zoo-v32")
def _(m):
    make_joint(m, range(n_blocks(m)))
    legacy_keys(m)


@variant("joint-new-keys", "zoo-v3")
def _(m):
    make_joint(m, range(n_blocks(m)))


@variant("pair-2d", "zoo-v2lite", "zoo-v3", "zoo-v3-512", "zoo-glm5")
def _(m):
    flatten(m, "attn_k_b.weight", range(n_blocks(m)))
    flatten(m, "attn_v_b.weight", range(n_blocks(m)))


@variant("pair-2d-here-3d-there", "zoo-v3", "zoo-glm52-shared")
def _(m):
    flatten(m, "attn_k_b.weight", range(0, n_blocks(m), 2))
    flatten(m, "attn_v_b.weight", range(1, n_blocks(m), 2))


@variant("pair-old-keys", "zoo-v2lite", "zoo-v3")
def _(m):
    legacy_keys(m)


@variant("joint-and-pair", "zoo-v2lite", "zoo-v3", "zoo-glm52-shared")
def _(m):
    make_joint(m, range(n_blocks(m)), keep_pair=True)
    flatten(m, "attn_k_b.weight", range(n_blocks(m)))
    flatten(m, "attn_v_b.weight", range(n_blocks(m)))
    legacy_keys(m)


def half_pair(gone):
    """The joint form and one half of the pair, as some converters left it."""
    def fn(m):
        make_joint(m, range(n_blocks(m)), keep_pair=True)
        m.replace([blk(n, gone) for n in range(n_blocks(m))], [])
        legacy_keys(m)
    return fn


variant("joint-and-k", "zoo-v3", "zoo-v2lite")(half_pair("attn_v_b.weight"))
variant("joint-and-v", "zoo-v3")(half_pair("attn_k_b.weight"))


@variant("joint-below-2", "zoo-v3", "zoo-glm52-shared", "zoo-v2lite")
def _(m):
    make_joint(m, range(2))


@variant("joint-below-2-old-keys", "zoo-v3")
def _(m):
    make_joint(m, range(2))
    legacy_keys(m)


@variant("no-head-lengths", "zoo-v3", "zoo-glm5")
def _(m):
    m.drop("attention.key_length", "attention.value_length", "attention.key_length_mla",
           "attention.value_length_mla", "attention.head_count_kv")


@variant("q-lora-0", "zoo-v2lite")
def _(m):
    m.put("attention.q_lora_rank", ge.U32, 0)


# ---- experts ----


@variant("fused", "zoo-v2lite", "zoo-v2-group", "zoo-v3", "zoo-v3-512", "zoo-glm5", "zoo-v32")
def _(m):
    make_fused(m, moe_blocks(m))


@variant("fused-here-split-there", "zoo-v2lite", "zoo-glm52-shared")
def _(m):
    make_fused(m, moe_blocks(m)[::2])


@variant("fused-and-split", "zoo-v3")
def _(m):
    make_fused(m, moe_blocks(m), keep=True)


# ---- output ----


@base("pair-tied", "zoo-v3")
def _(m):
    m.find("output.weight").data = m.find("token_embd.weight").data


@variant("no-output", "pair-tied")
def _(m):
    m.replace(["output.weight"], [])


# ---- NextN blocks ----


@variant("mtp", "zoo-v3", "zoo-glm47flash", "zoo-glm5", "zoo-glm52-shared", "zoo-v32")
def _(m):
    counted_mtp(m, NEXTN_ALWAYS)


@variant("mtp-of-nan-with-own-embedding", "zoo-v3", "zoo-glm5")
def _(m):
    counted_mtp(m, NEXTN_FULL, fill=nan_fill)


@variant("mtp-joint", "zoo-v3")
def _(m):
    counted_mtp(m, NEXTN_ALWAYS, joint=True)
    make_joint(m, range(n_blocks(m) - 1))
    legacy_keys(m)


@variant("mtp-taken-out", "zoo-v3", "zoo-glm5")
def _(m):
    m.put("block_count", ge.U32, n_blocks(m) + 1)
    m.put("nextn_predict_layers", ge.U32, 1)


@variant("mtp-without-key", "zoo-v3")
def _(m):
    m.put("block_count", ge.U32, add_mtp(m, NEXTN_ALWAYS) + 1)


@variant("mtp-not-counted", "zoo-v3")
def _(m):
    add_mtp(m, NEXTN_ALWAYS)


@variant("mtp-and-array-keys", "zoo-glm52-shared")
def _(m):
    counted_mtp(m, NEXTN_ALWAYS)
    n = n_blocks(m)
    m.put("attention.head_count", ge.ARRAY, [m.get("attention.head_count")] * n, ge.U32)
    m.put("attention.indexer.types", ge.ARRAY, m.get("attention.indexer.types") + [1], ge.BOOL)


# ---- index ----


def types_as(kind):
    def fn(m):
        m.put("attention.indexer.types", ge.ARRAY, m.get("attention.indexer.types"), kind)
    return fn


for _name, _kind in (("u32", ge.U32), ("i32", ge.I32), ("u8", ge.U8), ("i64", ge.I64)):
    variant(f"types-{_name}", "zoo-glm52-shared")(types_as(_kind))


@variant("index-everywhere", "zoo-glm52-shared")
def _(m):
    rng = random.Random(9)
    for n in range(n_blocks(m)):
        if not m.has(blk(n, INDEX[0])):
            m.tensors += [noise(m.find(blk(0, s)), blk(n, s), rng) for s in INDEX]


@variant("types-all-full", "zoo-glm5")
def _(m):
    m.put("attention.indexer.types", ge.ARRAY, [1] * n_blocks(m), ge.BOOL)


@base("pair-pattern", "zoo-glm52-shared")
def _(m):
    """Which layers select, as GLM-5.2 has it: 0, 1, 2, 6, ..."""
    rng = random.Random(11)
    m.put("attention.indexer.types", ge.ARRAY, [1, 1, 1, 0, 0, 0], ge.BOOL)
    m.tensors += [noise(m.find(blk(0, s)), blk(2, s), rng) for s in INDEX]


@variant("types-absent-long-context", "pair-pattern")
def _(m):
    """Published GLM-5.2 files: no types, index tensors in every block, NextN block included."""
    rng = random.Random(13)
    m.drop("attention.indexer.types")
    m.put("context_length", ge.U32, 1048576)
    for n in range(3, n_blocks(m)):
        m.tensors += [noise(m.find(blk(0, s)), blk(n, s), rng) for s in INDEX if not m.has(blk(n, s))]
    counted_mtp(m, NEXTN_ALWAYS)


@variant("index-absent", *DSA, base_settings=["model.indexer=off"])
def _(m):
    drop_index(m, range(n_blocks(m)), keys=True)


@variant("index-tensors-absent", *DSA, base_settings=["model.indexer=off"])
def _(m):
    drop_index(m, range(n_blocks(m)), keys=False)


@variant("index-absent-in-one-layer", "zoo-glm5", base_settings=["model.indexer=off"])
def _(m):
    drop_index(m, [1], keys=False)


@variant("index-there-but-off", *DSA, file_settings=["model.indexer=off"], base_settings=["model.indexer=off"])
def _(m):
    m.put("attention.indexer.top_k", ge.U32, 3)


# ---- keys ----


@variant("groups-1", "zoo-glm47flash", "zoo-glm5", "zoo-v2lite")
def _(m):
    m.put("expert_group_count", ge.U32, 1)
    m.put("expert_group_used_count", ge.U32, 1)


@variant("groups-0", "zoo-glm47flash", "zoo-glm5")
def _(m):
    m.put("expert_group_count", ge.U32, 0)
    m.put("expert_group_used_count", ge.U32, 0)


@variant("no-gating", "zoo-v2lite", "zoo-v2-group", "zoo-glm5", "zoo-glm52-shared", "zoo-v32")
def _(m):
    m.drop("expert_gating_func")


@variant("gating-0", "zoo-v2lite", "zoo-glm5")
def _(m):
    m.put("expert_gating_func", ge.U32, 0)


@variant("no-scale-no-norm", "zoo-v2lite")
def _(m):
    m.drop("expert_weights_scale", "expert_weights_norm")


@variant("scale-0", "zoo-v2lite")
def _(m):
    m.put("expert_weights_scale", ge.F32V, 0.0)


@variant("no-norm", "zoo-v2-group")
def _(m):
    m.drop("expert_weights_norm")


@variant("no-vocab-size", "zoo-v3", "zoo-v2lite")
def _(m):
    m.drop("vocab_size")


@variant("fewer-tokens-than-rows", "zoo-v3")
def _(m):
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        old = m.kv[key]
        m.kv[key] = ge.Key(ge.ARRAY, old.value[:-4], old.elem)


@variant("least-keys", "zoo-v2lite", "zoo-v3", "zoo-glm52-shared")
def _(m):
    """Without every key that a tensor or a default repeats."""
    m.drop("vocab_size", "feed_forward_length", "leading_dense_block_count", "attention.head_count_kv",
           "attention.key_length", "attention.value_length", "attention.key_length_mla",
           "attention.value_length_mla", "expert_feed_forward_length", "expert_count", "expert_shared_count",
           "rope.dimension_count")
    for suffix in ("attention.q_lora_rank", "attention.indexer.head_count", "attention.indexer.key_length",
                   "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"):
        m.kv.pop(m.key(suffix), None)


@variant("array-keys", "zoo-v3", "zoo-glm5")
def _(m):
    n, dense = n_blocks(m), m.get("leading_dense_block_count")
    m.put("attention.head_count", ge.ARRAY, [m.get("attention.head_count")] * n, ge.U32)
    m.put("attention.head_count_kv", ge.ARRAY, [m.get("attention.head_count_kv")] * n, ge.I32)
    m.put("feed_forward_length", ge.ARRAY, [m.get("feed_forward_length")] * dense + [0] * (n - dense), ge.U32)


@variant("other-kinds", "zoo-v3", "zoo-glm5")
def _(m):
    """Numbers in other widths than the converter writes."""
    kinds = [ge.U64, ge.I32, ge.I64, ge.U16]
    for i, (name, key) in enumerate(list(m.kv.items())):
        if not name.startswith(m.arch):
            continue
        if key.kind == ge.U32:
            kind = kinds[i % 4] if key.value < 65536 else ge.U64
            m.kv[name] = ge.Key(kind, key.value)
        elif key.kind == ge.F32V:
            m.kv[name] = ge.Key(ge.F64V, key.value)
        elif key.kind == ge.BOOL:
            m.kv[name] = ge.Key(ge.U8, key.value)


@variant("rope-none", "zoo-glm5")
def _(m):
    m.put("rope.scaling.type", ge.STRING, b"none")
    m.put("rope.scaling.factor", ge.F32V, 1.0)


@variant("strangers", "zoo-v3")
def _(m):
    """Keys and tensors that no table knows."""
    m.kv["general.sampling.temp"] = ge.Key(ge.F32V, 0.5)
    m.put("no.such.key", ge.U32, 3)
    stranger = noise(m.find("output_norm.weight"), "blk.0.attn_rot_norm.weight", random.Random(1))
    m.tensors = [stranger] + m.tensors
    m.tensors.append(ge.Tensor("rope_factors.weight", [8], ge.F32, bytes(32)))


# ---- types of tensors ----


@variant("f32", "zoo-v2lite", "zoo-v2-group", "zoo-v3", "zoo-glm5", "zoo-v32")
def _(m):
    convert_all(m, ge.F32, (ge.BF16,))


@variant("f16-where-exact", "zoo-v2lite", "zoo-v3", "zoo-glm5")
def _(m):
    convert_all(m, ge.F16, (ge.BF16,))


def rounded(m, kind):
    """Every tensor rounded so that F16 and BF16 both hold it exactly, then stored in type `kind`."""
    for i, t in enumerate(m.tensors):
        bits = array("I", array("f", t.numbers()).tobytes())
        for j, b in enumerate(bits):
            exponent = (b >> 23 & 255) - 127
            bits[j] = b & 0xffff0000 if -14 <= exponent <= 14 else 0
        wide = ge.Tensor(t.name, t.dims, ge.F32, bits.tobytes())
        m.tensors[i] = ge.converted(wide, kind(t))


@base("pair-short", "zoo-glm5")
def _(m):
    rounded(m, lambda t: ge.F32)


variant("bf16", "pair-short")(lambda m: convert_all(m, ge.BF16, (ge.F32,)) and None)
variant("f16", "pair-short")(lambda m: convert_all(m, ge.F16, (ge.F32,)) and None)


@variant("small-ones-f16", "pair-short")
def _(m):
    """Router, norms, biases and index weights as F16, all else BF16."""
    small = ("norm", "ffn_gate_inp", "exp_probs_b", "indexer.proj")
    for i, t in enumerate(m.tensors):
        m.tensors[i] = ge.converted(t, ge.F16 if any(s in t.name for s in small) else ge.BF16)


@variant("types-by-turns", "pair-short")
def _(m):
    """Gate and up, k_b and v_b, neighbouring layers: all of different types."""
    for i, t in enumerate(m.tensors):
        m.tensors[i] = ge.converted(t, (ge.F32, ge.F16, ge.BF16)[i % 3])


@variant("companion-scales", "zoo-v3", "zoo-v2lite", "zoo-glm5")
def _(m):
    """As converted NVFP4 checkpoints have them, here with types whose numbers stay exact."""
    every = ("attn_", "ffn_", "indexer.attn_", "indexer.proj", "token_embd", "output.weight")
    add_scales(m, every, 4.0)
    m.tensors.append(ge.Tensor("blk.0.attn_output.input_scale", [1], ge.F32, bytes(4)))


# ---- container ----


@variant("shuffled-align-64", "zoo-v3", "zoo-glm52-shared")
def _(m):
    random.Random(3).shuffle(m.tensors)
    return {"alignment": 64}


@variant("data-out-of-order-with-gaps", "zoo-v3")
def _(m):
    order = list(range(len(m.tensors)))
    random.Random(4).shuffle(order)
    return {"data_order": order, "gap": 3}


for _align in (8, 4096, 65536):
    variant(f"align-{_align}", "zoo-v3")(lambda m, a=_align: {"alignment": a})
variant("no-padding-at-the-end", "zoo-v3")(lambda m: {"cut_padding": True})


@variant("version-2", "zoo-v3", "zoo-glm5")
def _(m):
    m.version = 2


@variant("four-dimensions", "zoo-v3")
def _(m):
    for t in m.tensors:
        t.dims += [1] * (4 - len(t.dims))


@variant("bytes-behind", "zoo-v3")
def _(m):
    def write(stem, model):
        ge.write(stem + ".gguf", model)
        with open(stem + ".gguf", "ab") as f:
            f.write(b"GGUF" * 100)
        return stem + ".gguf"
    return write


@variant("merged-shards", "zoo-v3")
def _(m):
    """What is left when shards were merged: the split keys with a count of 0."""
    m.kv["split.no"] = ge.Key(ge.U16, 0)
    m.kv["split.count"] = ge.Key(ge.U16, 0)
    m.kv["split.tensors.count"] = ge.Key(ge.I32, len(m.tensors))


def shards(groups_of, **more):
    return lambda m: lambda stem, model: ge.write_shards(stem, model, groups_of(model), **more)[0]


variant("shards-3", "zoo-v3", "zoo-v2lite", "zoo-glm52-shared")(shards(thirds))
variant("shards-1", "zoo-v3")(shards(lambda m: [m.tensors]))
variant("shards-first-empty", "zoo-v3", "zoo-glm5")(shards(lambda m: [[]] + thirds(m)))
variant("shards-middle-empty", "zoo-v3")(shards(lambda m: thirds(m)[:1] + [[]] + thirds(m)[1:]))
variant("shards-of-other-alignments", "zoo-v3")(shards(thirds, alignments=[None, 256, 64]))
variant("shards-of-one-tensor", "zoo-v3")(shards(lambda m: [[t] for t in m.tensors]))
variant("shards-layers-torn", "zoo-glm5")(shards(lambda m: [m.tensors[i::3] for i in range(3)]))


@variant("all-at-once", "zoo-v3", "zoo-glm5")
def _(m):
    """Joint, fused, NextN, F32, old keys, version 2, shuffled, four shards of which the first is empty."""
    make_joint(m, range(n_blocks(m)))
    make_fused(m, moe_blocks(m))
    counted_mtp(m, NEXTN_FULL)
    legacy_keys(m)
    convert_all(m, ge.F32, (ge.BF16,))
    m.version = 2
    random.Random(5).shuffle(m.tensors)
    return shards(lambda model: [[]] + thirds(model), alignments=[None, 64, 32, 128])(m)


# ---- all of them ----

def write_one(out, name, model, how):
    stem = os.path.join(out, name)
    if callable(how):
        return os.path.basename(how(stem, model))
    ge.write(stem + ".gguf", model, **(how or {}))
    return name + ".gguf"


def main(argv):
    if len(argv) != 3:
        sys.exit("Usage: derive_variants.py ZOO OUT")
    zoo, out = os.path.abspath(argv[1]), argv[2]
    os.makedirs(out, exist_ok=True)
    for name in sorted(os.listdir(zoo)):
        if name.endswith(".gguf") and not name.endswith(".golden.gguf"):
            MODELS[name[:-5]] = ge.read(os.path.join(zoo, name))
    for name, origin, fn in BASES:
        MODELS[name] = MODELS[origin].copy()
        write_one(out, name, MODELS[name], fn(MODELS[name]))

    def derive(base_name, name, fn):
        m = MODELS[base_name].copy()
        file = write_one(out, f"{base_name}.{name}", m, fn(m))
        base_path = os.path.join(out if base_name.startswith("pair-") else zoo, base_name + ".gguf")
        return file, base_path

    index = {"pairs": [], "different": [], "refused": []}
    for name, bases, fn, file_settings, base_settings in VARIANTS:
        for base_name in bases:
            file, base_path = derive(base_name, name, fn)
            golden = None if base_name.startswith("pair-") or base_settings else base_path[:-5] + ".golden.gguf"
            index["pairs"].append({"file": file, "base": base_path, "golden": golden,
                                   "file_settings": file_settings, "base_settings": base_settings})
    for name, bases, fn in DIFFERENT:
        for base_name in bases:
            file, base_path = derive(base_name, name, fn)
            index["different"].append({"file": file, "base": base_path})
    for name, base_name, fn, says in REFUSED:
        index["refused"].append({"file": derive(base_name, name, fn)[0], "says": list(says)})
    with open(os.path.join(out, "variants.json"), "w", encoding="utf-8") as f:
        json.dump(index, f, indent=1)
    print(f"{len(VARIANTS)} layouts in {len(index['pairs'])} models, {len(index['different'])} wrong ones, "
          f"{len(index['refused'])} to be refused")


if __name__ == "__main__":
    main(sys.argv)
