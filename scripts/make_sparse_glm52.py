#!/usr/bin/env python3
"""Writes a model of GLM-5.2's true size that takes no room: real headers in front of holes.

Usage: make_sparse_glm52.py OUT [--mix q5|iq4|402gb]

13 shards as published: the first has the metadata and no tensor, the others 1809 tensors of the true shapes. The numbers
read as zeros, so the model opens, but its text would be meaningless. Vocabulary (154880) and merges (321649) are made up.
  q5   types as in a published Q5_K mix: f32 709, q8_0 876, q5_K 150, q6_K 74
  iq4  the experts as iq4_xs, all else q8_0 and f32: 411 GB (q5 has 562)
  402gb  as iq4, but gate and up of the first 14 expert layers as q3_K: 402 GB
Prints the path of the first shard. Exit 77 with the reason where the file system has no sparse files or refuses the size.
"""
# SPDX-License-Identifier: MIT
import argparse
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import gguf_edit as ge  # noqa: E402

F32, Q8_0, Q3_K, Q5_K, Q6_K, IQ4_XS = 0, 8, 11, 13, 14, 23
BLOCK = {F32: (1, 4), Q8_0: (32, 34), Q3_K: (256, 110), Q5_K: (256, 176), Q6_K: (256, 210), IQ4_XS: (256, 136)}

BLOCKS, DENSE, N_SHARDS = 79, 3, 13
E, N_FF, HEADS, NOPE, ROPE, V, C, Q = 6144, 12288, 64, 192, 64, 256, 512, 2048
EXPERTS, F, INDEX_HEADS, INDEX_DIM = 256, 2048, 32, 128
VOCAB, MERGES = 154880, 321649
# A first shard of this size on disk would mean that holes are stored; the headers themselves take about 10 MB.
MOST_DISK_BYTES = 64 << 20

NAME = "GLM-5.2-sparse"


class Info:
    """A tensor without its data."""

    def __init__(self, name, dims, kind):
        self.name, self.dims, self.type = name, dims, kind
        n = 1
        for d in dims:
            n *= d
        elems, size = BLOCK[kind]
        assert dims[0] % elems == 0, name
        self.n_bytes = n // elems * size


def block_tensors(n, mix):
    def add(name, dims, kind=Q8_0):
        out.append(Info(f"blk.{n}.{name}", dims, kind))

    out, mtp = [], n == BLOCKS - 1
    add("attn_norm.weight", [E], F32)
    add("attn_q_a.weight", [E, Q])
    add("attn_q_a_norm.weight", [Q], F32)
    add("attn_q_b.weight", [Q, HEADS * (NOPE + ROPE)])
    add("attn_kv_a_mqa.weight", [E, C + ROPE])
    add("attn_kv_a_norm.weight", [C], F32)
    add("attn_k_b.weight", [NOPE, C, HEADS])
    add("attn_v_b.weight", [C, V, HEADS])
    add("attn_output.weight", [HEADS * V, E])
    add("indexer.attn_q_b.weight", [Q, INDEX_HEADS * INDEX_DIM])
    add("indexer.attn_k.weight", [E, INDEX_DIM])
    add("indexer.k_norm.weight", [INDEX_DIM], F32)
    add("indexer.k_norm.bias", [INDEX_DIM], F32)
    add("indexer.proj.weight", [E, INDEX_HEADS], F32)
    add("ffn_norm.weight", [E], F32)
    if n < DENSE:
        add("ffn_gate.weight", [E, N_FF])
        add("ffn_up.weight", [E, N_FF])
        add("ffn_down.weight", [N_FF, E])
        return out
    add("ffn_gate_inp.weight", [E, EXPERTS], F32)
    add("exp_probs_b.bias", [EXPERTS], F32)
    # The published mix keeps the NextN block and the first down projection finer than the rest.
    gate = Q8_0 if mtp else Q5_K
    down = Q8_0 if mtp or n == DENSE else Q6_K
    if mix != "q5":
        gate = down = IQ4_XS
    if mix == "402gb" and n < DENSE + 14:
        gate = Q3_K
    add("ffn_gate_exps.weight", [E, F, EXPERTS], gate)
    add("ffn_up_exps.weight", [E, F, EXPERTS], gate)
    add("ffn_down_exps.weight", [F, E, EXPERTS], down)
    add("ffn_gate_shexp.weight", [E, F])
    add("ffn_up_shexp.weight", [E, F])
    add("ffn_down_shexp.weight", [F, E])
    if mtp:
        add("nextn.eh_proj.weight", [2 * E, E])
        add("nextn.enorm.weight", [E], F32)
        add("nextn.hnorm.weight", [E], F32)
        add("nextn.shared_head_norm.weight", [E], F32)
    return out


def all_tensors(mix):
    out = [Info("token_embd.weight", [E, VOCAB], Q8_0), Info("output.weight", [E, VOCAB], Q8_0),
           Info("output_norm.weight", [E], F32)]
    for n in range(BLOCKS):
        out += block_tensors(n, mix)
    return out


# ---- vocabulary ----


def alphabet():
    """The character of each byte, as byte-level BPE spells it."""
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    extra = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(extra)) for b in range(256)]


SPECIAL = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
           "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>",
           "<|begin_of_audio|>", "<|end_of_audio|>", "<|begin_of_transcription|>", "<|end_of_transcription|>",
           "<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>", "/nothink", "<think>", "</think>", "<tool_call>",
           "</tool_call>"]
FIRST_SPECIAL = 154820


def vocabulary():
    """Tokens and merges in the true numbers: every pair of bytes, triples (two merges each), fours (three each)."""
    letters = alphabet()
    tokens = list(letters)
    merges = []
    for a in letters:
        for b in letters:
            tokens.append(a + b)
            merges.append(f"{a} {b}")
    # t triples and f fours: t + f = tokens that are left, 2t + 3f = merges that are left
    left, left_merges = FIRST_SPECIAL - len(tokens), MERGES - len(merges)
    fours = left_merges - 2 * left
    triples = left - fours
    small = letters[65:65 + 22]  # the triples of these serve as parts of the fours
    inner = [a + b + c for a in small for b in small for c in small]
    outer = (a + b + letters[0x30] for a in letters for b in letters)
    threes = (inner + [next(outer) for _ in range(max(0, triples - len(inner)))])[:triples]
    for s in threes:
        merges += [f"{s[:2]} {s[2:]}", f"{s[0]} {s[1:]}"]
    longer = []
    for s in inner:
        longer += [s + d for d in small[:max(0, min(22, fours - len(longer)))]]
    for s in longer:
        merges += [f"{s[:2]} {s[2:]}", f"{s[:3]} {s[3]}", f"{s[0]} {s[1:]}"]
    tokens += threes + longer
    kinds = [1] * len(tokens) + [3] * len(SPECIAL)
    tokens += SPECIAL
    while len(tokens) < VOCAB:
        tokens.append(f"[PAD{len(tokens)}]")
        kinds.append(5)
    assert len(set(tokens)) == VOCAB and len(set(merges)) == MERGES == len(merges)
    return tokens, kinds, merges


def metadata():
    tokens, kinds, merges = vocabulary()
    u32, f32 = {}, {}
    u32.update({"block_count": BLOCKS, "context_length": 1048576, "embedding_length": E, "feed_forward_length": N_FF,
                "attention.head_count": HEADS, "attention.head_count_kv": 1})
    f32.update({"rope.freq_base": 8e6, "attention.layer_norm_rms_epsilon": 1e-5, "expert_weights_scale": 2.5})
    u32.update({"expert_count": EXPERTS, "expert_used_count": 8, "expert_group_count": 1, "expert_group_used_count": 1,
                "expert_gating_func": 2, "attention.key_length": C + ROPE, "attention.value_length": C,
                "leading_dense_block_count": DENSE, "vocab_size": VOCAB, "attention.q_lora_rank": Q,
                "attention.kv_lora_rank": C, "attention.key_length_mla": NOPE + ROPE, "attention.value_length_mla": V,
                "expert_feed_forward_length": F, "expert_shared_count": 1, "rope.dimension_count": ROPE,
                "nextn_predict_layers": 1, "attention.indexer.head_count": INDEX_HEADS,
                "attention.indexer.key_length": INDEX_DIM, "attention.indexer.top_k": 2048})
    kv = {"general.architecture": ge.Key(ge.STRING, b"glm-dsa"), "general.type": ge.Key(ge.STRING, b"model"),
          "general.name": ge.Key(ge.STRING, NAME.encode()), "general.quantization_version": ge.Key(ge.U32, 2),
          "general.file_type": ge.Key(ge.U32, 17)}
    kv.update({f"glm-dsa.{k}": ge.Key(ge.U32, v) for k, v in u32.items()})
    kv.update({f"glm-dsa.{k}": ge.Key(ge.F32V, v) for k, v in f32.items()})
    kv["glm-dsa.expert_weights_norm"] = ge.Key(ge.BOOL, 1)
    t = "tokenizer.ggml."
    kv[t + "model"], kv[t + "pre"] = ge.Key(ge.STRING, b"gpt2"), ge.Key(ge.STRING, b"glm4")
    kv[t + "tokens"] = ge.Key(ge.ARRAY, [s.encode() for s in tokens], ge.STRING)
    kv[t + "token_type"] = ge.Key(ge.ARRAY, kinds, ge.I32)
    kv[t + "merges"] = ge.Key(ge.ARRAY, [s.encode() for s in merges], ge.STRING)
    for name, token in (("eos", 154820), ("padding", 154821), ("bos", 154822), ("eot", 154827), ("eom", 154829)):
        kv[f"{t}{name}_token_id"] = ge.Key(ge.U32, token)
    kv["tokenizer.chat_template"] = ge.Key(ge.STRING, b"[gMASK]<sop>{% for m in messages %}<|user|>{{ m.content }}"
                                                      b"{% endfor %}<|assistant|>")
    return kv


# ---- files ----


def groups_of(tensors):
    """No tensor for the first shard, about as many bytes for each of the others."""
    total, groups, done = sum(t.n_bytes for t in tensors), [[] for _ in range(N_SHARDS)], 0
    for t in tensors:
        groups[1 + min(N_SHARDS - 2, done * (N_SHARDS - 1) // total)].append(t)
        done += t.n_bytes
    return groups


def write_shard(path, kv, tensors):
    offsets, at = [], 0
    for t in tensors:
        offsets.append(at)
        at = -(-(at + t.n_bytes) // 32) * 32
    head = ge.header(kv, tensors, offsets)
    start = -(-len(head) // 32) * 32
    with open(path, "wb") as f:
        f.write(head)
        f.flush()
        if tensors:
            os.ftruncate(f.fileno(), start + at)
    return os.stat(path)


def make(out, mix):
    os.makedirs(out, exist_ok=True)
    tensors = all_tensors(mix)
    paths, n_bytes, disk = [], 0, 0
    try:
        for i, group in enumerate(groups_of(tensors)):
            kv = metadata() if i == 0 else {}
            kv["split.no"], kv["split.count"] = ge.Key(ge.U16, i), ge.Key(ge.U16, N_SHARDS)
            kv["split.tensors.count"] = ge.Key(ge.I32, len(tensors))
            paths.append(ge.shard_path(os.path.join(out, NAME), i + 1, N_SHARDS))
            st = write_shard(paths[-1], kv, group)
            n_bytes, disk = n_bytes + st.st_size, disk + st.st_blocks * 512
            if disk > MOST_DISK_BYTES:
                raise OSError(f"{disk} bytes are stored for {n_bytes}: no sparse files")
    except OSError as error:
        for path in paths:
            os.unlink(path)
        print(f"SKIP: {out} cannot hold a sparse model: {error}")
        sys.exit(77)
    return paths[0], n_bytes, disk, tensors


def main():
    parser = argparse.ArgumentParser(description="A sparse model of GLM-5.2's size.")
    parser.add_argument("out")
    parser.add_argument("--mix", choices=("q5", "iq4", "402gb"), default="q5")
    args = parser.parse_args()
    first, n_bytes, disk, tensors = make(args.out, args.mix)
    counts = {}
    for t in tensors:
        counts[t.type] = counts.get(t.type, 0) + 1
    names = {F32: "f32", Q8_0: "q8_0", Q3_K: "q3_K", Q5_K: "q5_K", Q6_K: "q6_K", IQ4_XS: "iq4_xs"}
    types = ", ".join(f"{names[k]} {n}" for k, n in sorted(counts.items()))
    print(f"{len(tensors)} tensors ({types}), {n_bytes} bytes, of which {disk} on disk", file=sys.stderr)
    print(first)


if __name__ == "__main__":
    main()
