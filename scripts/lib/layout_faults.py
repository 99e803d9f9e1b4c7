"""layout_faults.py - variants that are wrong on purpose: a comparison must see some of them, others must not open at all.

SPDX-License-Identifier: MIT
"""
import os
import struct

import gguf_edit as ge
from layout_edit import (MODELS, add_scales, blk, different, drop_index, legacy_keys, make_fused, make_joint,
                         moe_blocks, n_blocks, refused, thirds)

# ---- wrong on purpose: the comparison must see it ----


@different("fused-up-first", "zoo-v3")
def _(m):
    make_fused(m, moe_blocks(m), up_first=True)


@different("gate-and-up-swapped", "zoo-v2lite")
def _(m):
    for n in moe_blocks(m)[-1:]:
        gate, up = m.find(blk(n, "ffn_gate_shexp.weight")), m.find(blk(n, "ffn_up_shexp.weight"))
        gate.data, up.data = up.data, gate.data


@different("joint-value-rows-first", "zoo-v3")
def _(m):
    make_joint(m, [3], value_first=True)
    legacy_keys(m)


@different("heads-turned", "zoo-glm5")
def _(m):
    t = m.find(blk(3, "attn_v_b.weight"))
    size = len(t.data) // t.dims[2]
    t.data = t.data[size:] + t.data[:size]


@different("other-types", "zoo-glm52-shared")
def _(m):
    m.put("attention.indexer.types", ge.ARRAY, [1, 1, 0, 0, 0, 0], ge.BOOL)


@different("sigmoid-without-key", "zoo-v3")
def _(m):
    m.drop("expert_gating_func")


@different("one-weight", "zoo-v3")
def _(m):
    t = m.find(blk(3, "ffn_norm.weight"))
    values = t.numbers()
    values[5] *= 1.01
    t.data = values.tobytes()


@different("index-off", "zoo-glm5")
def _(m):
    drop_index(m, range(n_blocks(m)), keys=True)


@different("companion-scale-of-one-layer", "zoo-v3")
def _(m):
    add_scales(m, ("blk.3.attn_output.weight",), 4.0)
    m.tensors[-1].data = struct.pack("<f", 0.5)


# ---- refused ----


def write_split(groups_of=thirds, change=None, first=0, **more):
    """Writes shards, lets `change` damage them, and names shard `first`, or what `change` returns."""
    def fn(_m):
        def write(stem, model):
            paths = ge.write_shards(stem, model, groups_of(model), **more)
            opened = change(paths) if change is not None else None
            return opened or paths[first]
        return write
    return fn


def swap(paths):
    os.rename(paths[1], paths[1] + ".held")
    os.rename(paths[2], paths[1])
    os.rename(paths[1] + ".held", paths[2])


def rename(paths):
    for path in paths:
        os.rename(path, path.replace("-of-", "-von-"))
    return paths[0].replace("-of-", "-von-")


def from_other(zoo_name, total=None):
    """The second shard comes from another model of the zoo."""
    def write(stem, model):
        paths = ge.write_shards(stem, model, thirds(model))
        other = MODELS[zoo_name]
        strange = ge.write_shards(stem + ".other", other, thirds(other), total=total)
        os.replace(strange[1], paths[1])
        for path in (strange[0], strange[2]):
            os.unlink(path)
        return paths[0]
    return lambda m: write


def other_widths(stem, model):
    """Names and totals agree, but the second shard's model has other widths."""
    paths = ge.write_shards(stem, model, thirds(model))
    other = model.copy()
    for t in other.tensors:
        t.dims[0] *= 2
        t.data = t.data * 2
    ge.write(paths[1], ge.Model(ge.read_keys(paths[1]), thirds(other)[1]))
    return paths[0]


refused("second-shard-given", "zoo-v3", "this is shard 2 of 3", "00001-of-00003.gguf")(write_split(first=1))
refused("shard-missing", "zoo-v3", "shard 2 of 3 is missing", "00002-of-00003.gguf")(
    write_split(change=lambda p: os.unlink(p[1])))
refused("shard-empty-file", "zoo-v3", "empty", "00003-of-00003.gguf")(
    write_split(change=lambda p: open(p[2], "wb").close()))
refused("shards-swapped", "zoo-v3", "the name says shard 2, but the file says shard 3")(write_split(change=swap))
refused("total-wrong", "zoo-v3", "hold 65 tensors together", "split.tensors.count says 66")(write_split(total=66))
refused("shards-of-other-sets", "zoo-v3", "set has 67 tensors, the first one's 65")(from_other("zoo-v32"))
refused("shards-of-two-models", "zoo-v3", "tensor 'blk.", "is in shard 1 and again in shard 2")(
    from_other("zoo-v32", total=65))
refused("shards-of-two-widths", "zoo-v3", "tensor blk.", "was expected")(lambda m: other_widths)
refused("shard-count-wrong", "zoo-v3", "the name says shard 1 of 3, but the file says shard 1 of 4")(
    write_split(count=4))
refused("shard-renamed", "zoo-v3", "its name must end in -00001-of-00003.gguf", "rename it")(
    write_split(change=rename))


@refused("k-without-v", "zoo-v3", "blk.2.attn_v_b.weight", "is missing", "attn_kv_b, or attn_k_b and attn_v_b")
def _(m):
    m.replace([blk(2, "attn_v_b.weight")], [])


@refused("v-without-k", "zoo-v3", "blk.2.attn_k_b.weight", "is missing", "attn_kv_b, or attn_k_b and attn_v_b")
def _(m):
    m.replace([blk(2, "attn_k_b.weight")], [])


@refused("no-kv-up", "zoo-v3", "blk.1.attn_kv_b.weight", "is missing")
def _(m):
    m.replace([blk(1, "attn_k_b.weight"), blk(1, "attn_v_b.weight")], [])


@refused("prefix", "zoo-v3", "carry the prefix 'model.'")
def _(m):
    for t in m.tensors:
        t.name = "model." + t.name


@refused("gate-without-up", "zoo-v3", "ffn_up_exps.weight", "ffn_gate_up_exps")
def _(m):
    m.replace([blk(3, "ffn_up_exps.weight")], [])


@refused("joint-of-too-few-rows", "zoo-v3", "blk.0.attn_kv_b.weight is [32, 192]", "[32, 224]")
def _(m):
    make_joint(m, [0])
    t = m.find(blk(0, "attn_kv_b.weight"))
    t.dims[1] = 192
    t.data = t.data[:32 * 192 * 2]


@refused("half-of-the-mla-keys", "zoo-v3", "value_length_mla is missing", "both or neither")
def _(m):
    m.drop("attention.value_length_mla")


@refused("q-lora-0-but-compressed", "zoo-v3", "attention.q_lora_rank is 0", "attn_q_a")
def _(m):
    m.put("attention.q_lora_rank", ge.U32, 0)


@refused("types-of-another-length", "zoo-glm52-shared", "attention.indexer.types has 5 entries", "6 layers")
def _(m):
    m.put("attention.indexer.types", ge.ARRAY, [1, 1, 0, 0, 1], ge.BOOL)


@refused("types-share-from-the-start", "zoo-glm52-shared", "entry 0 of key", "no earlier choice")
def _(m):
    m.put("attention.indexer.types", ge.ARRAY, [0, 1, 0, 0, 1, 0], ge.BOOL)


@refused("trunk-layer-missing", "zoo-v3", "block_count is 5", "no tensors of blk.4")
def _(m):
    m.put("block_count", ge.U32, 5)


@refused("layer-counted-as-mtp", "zoo-v3", "nextn_predict_layers is 1", "no nextn tensors in blk.3")
def _(m):
    m.put("nextn_predict_layers", ge.U32, 1)


@refused("experts-scaled-apart", "zoo-v3", "blk.3.ffn_down_exps.scale", "scales each expert", "differently")
def _(m):
    add_scales(m, ("blk.3.ffn_down_exps",), 2.0, per_expert=lambda n: [1.0] * (n - 1) + [2.0])
