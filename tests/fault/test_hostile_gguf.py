"""test_hostile_gguf.py - GGUF files that are wrong in one way each, through the real program.

Not here: files that are wrong only together or in their texts (test_hostile_sets.py). The items named in the comments
are the well-known ways in which readers of this format were broken.
SPDX-License-Identifier: MIT
"""
import os
import struct

import fault_case as fc
from fault_case import ge, write_file
from gguf_bytes import (ARRAY, F64, Q4_K, Q8_0, STRING, U8, U32, U32_MAX, U64, U64_MAX, array, header, key, kv_text,
                        kv_u32, one_tensor, padded, tensor, text, two_tensors, u16, u32, u64)

suite = fc.Suite()


def commands(path):
    """Everything that opens a model opens it through the same door, but each has its own way out."""
    return [("inspect", path), ("run", "-m", path, "-p", "x"), ("tokenize", "-m", path, "-p", "x")]


def image(name, data, *says):
    """A file of exactly these bytes, refused by every command; the sentence names the file."""
    suite.add("container", name, lambda folder: commands(write_file(folder, name + ".gguf", data)),
              name + ".gguf: ", *says)


def kv(name, data, *says, n_kv=1):
    image(name, header(0, n_kv) + data, *says)


# ---- the first bytes ----
image("empty", b"", "the file is empty")
image("text", b"Dear reader, hello", "not a GGUF file", "Dear reader,")
image("web-page", b"<!DOCTYPE html><html>", "this is a web page")
image("lfs-pointer", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull")
image("safetensors", u64(90) + b'{"a":{}}', "safetensors")
image("pytorch", b"PK\x03\x04 archive", "PyTorch")
image("zeros", bytes(4096), "not a GGUF file", "00 00 00 00")
image("control-characters", b"\x1b[2J\x1b]0;owned\x07 hello", "not a GGUF file", "1b 5b 32 4a")
image("magic-only", b"GGUF", "version of the header", "incomplete download")
image("cut-in-the-counts", header(0, 0)[:20], "metadata count of the header at byte 16", "incomplete download")
image("version-0", header(0, 0, 0), "version 0 is unknown")
image("version-1", header(0, 0, 1), "version 1 is not supported")
image("version-4", header(0, 0, 4), "version 4 is unknown")
image("big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian")
image("magic-reversed", b"FUGG" + u32(3), "byte-swapped")

# ---- counts and lengths beyond the file (1.5 items 1, 2, 3, 13) ----
for label, n in (("all-ones", U64_MAX), ("2-63", 2 ** 63), ("2-60", 2 ** 60), ("2-31", 2 ** 31)):
    image("kv-count-" + label, header(0, n) + bytes(16), f"announces {n} metadata records")
    image("tensor-count-" + label, header(n, 0) + bytes(24), f"announces {n} tensors")
    kv("key-length-" + label, u64(n) + b"k" * 8, "key of metadata record 0", f"takes {n} bytes")
    kv("string-length-" + label, key("k", STRING) + u64(n) + b"abc", "value of metadata record 0 (k)",
       f"takes {n} bytes")
    kv("array-count-" + label, array("k", U32, n) + u32(4), "metadata record 0 (k)", f"array of {n} elements")
    kv("strings-count-" + label, array("k", STRING, n) + u64(0), "metadata record 0 (k)", f"array of {n} elements")
    kv("string-in-array-" + label, array("k", STRING, 2) + text("ab") + u64(n), "array element of metadata record 0 (k)")
kv("array-wraps-to-4-bytes", array("k", U32, 2 ** 62 + 1) + u32(4), "array of 4611686018427387905 elements")
kv("array-one-too-many", array("k", U64, 3) + bytes(23), "array of 3 elements")
kv("string-of-the-file's-size", key("k", STRING) + u64(24 + 13 + 8 + 3) + b"abc", "value of metadata record 0 (k)")
kv("string-one-too-long", key("k", STRING) + u64(4) + b"abc", "takes 4 bytes, but the file ends after 3 more")
image("kv-count-one-too-many", header(0, 2) + bytes(25), "hold at most 1")
image("tensor-count-one-too-many", header(2, 0) + bytes(47), "hold at most 1")
image("kv-count-limit", header(0, 65537) + bytes(13 * 65537), "the limit is 65536")
kv("tiny-with-huge-vocabulary", array("tokenizer.ggml.tokens", STRING, 2 ** 40), "tokenizer.ggml.tokens")

# ---- keys and kinds ----
kv("key-empty", key("", U32) + u32(1), "record 0", "empty key")
kv("key-with-zero-byte", key("a\0b", U32) + u32(1), "zero byte")
kv("key-too-long", key("k" * 65536, U32) + u32(1), "the limit is 65535")
kv("key-twice", kv_u32("a", 1) + kv_u32("b", 1) + kv_u32("a", 2), "record 2 (a)", "same key as record 0", n_kv=3)
kv("template-twice", kv_text("tokenizer.chat_template", "x") + kv_text("tokenizer.chat_template", "y"),
   "tokenizer.chat_template", "same key", n_kv=2)
kv("kind-13", key("k", 13) + u64(0), "record 0 (k)", "unknown kind 13")
kv("kind-255", key("k", 255) + u64(0), "unknown kind 255")
kv("kind-all-ones", key("k", U32_MAX) + u64(0), "unknown kind 4294967295")
kv("array-of-arrays", array("k", ARRAY, 1) + u32(U32) + u64(0), "record 0 (k)", "array of arrays")
kv("arrays-100000-deep", array("k", ARRAY, 1) + (u32(ARRAY) + u64(1)) * 100000, "record 0 (k)", "array of arrays")
kv("array-of-kind-13", array("k", 13, 1) + u64(0), "array of unknown kind 13")
kv("key-of-hostile-bytes", key("\x1b[31m\xff\n\n", 13) + u64(0), "unknown kind 13")
kv("alignment-0", kv_u32("general.alignment", 0), "general.alignment is 0", "power of two")
kv("alignment-24", kv_u32("general.alignment", 24), "general.alignment is 24", "power of two")
kv("alignment-2-31", kv_u32("general.alignment", 2 ** 31), "general.alignment", "the limit is 1048576")
kv("alignment-u64", key("general.alignment", U64) + u64(32), "general.alignment has kind u64", "must be u32")
kv("alignment-text", kv_text("general.alignment", "32"), "general.alignment has kind string")

# ---- tensors (1.5 items 4 to 8) ----
image("name-too-long", padded(header(1, 0) + tensor("n" * 64, [4])), "the limit is 63")
image("name-length-all-ones", header(1, 0) + u64(U64_MAX) + bytes(40), "name of tensor record 0")
image("name-empty", padded(header(1, 0) + tensor("", [4])), "tensor record 0", "empty name")
image("name-with-zero-byte", padded(header(1, 0) + tensor("a\0b", [4])), "zero byte")
image("name-twice", two_tensors("a", 0, "a", 64), "tensor 'a' is listed twice, as records 0 and 1")
for n in (0, 5, 9):
    image(f"dims-{n}", one_tensor([1] * n), "tensor record 0 (w)", f"has {n} dimensions")
image("dims-all-ones", header(1, 0) + text("w") + u32(U32_MAX) + bytes(64), "has 4294967295 dimensions")
image("dim-negative", one_tensor([U64_MAX, 2]), "tensor record 0 (w)", "negative dimension")
image("dims-wrap-to-zero", one_tensor([2 ** 32, 2 ** 32]), "more elements than 64 bits")
image("dims-wrap-small", one_tensor([2 ** 42 + 1, 1152 << 12]), "more elements than 64 bits")
image("dims-wrap-to-fit", one_tensor([2 ** 62, 4, 64]), "more elements than 64 bits")
image("dims-of-the-field", one_tensor([2 ** 42 + 1, 1152]), "incomplete download", "tensor 'w'")
image("dims-overflow-behind-zero", one_tensor([0, 2 ** 40, 2 ** 40]), "more elements than 64 bits")
image("bytes-overflow", one_tensor([2 ** 61], F64), "more bytes than 64 bits")
image("row-no-blocks", one_tensor([33, 2], Q8_0), "whole number of blocks")
image("row-no-superblocks", one_tensor([128, 2], Q4_K), "blocks of 256")
for kind, word in ((4, "type 4 (Q4_2), which was removed"), (5, "type 5"), (31, "type 31"), (36, "type 36"),
                   (38, "type 38"), (43, "type 43, which is none of the format's"), (97, "type 97"), (139, "type 139"),
                   (255, "type 255"), (U32_MAX, "type 4294967295")):
    image(f"type-{kind}", one_tensor([256], kind), "(w)", word)
image("offset-odd", one_tensor([4], offset=16), "(w)", "offset 16, which is no multiple")
image("offset-wraps", one_tensor([64], offset=U64_MAX - 31), "beyond 64 bits")
image("offset-huge", one_tensor([64], offset=2 ** 62), "incomplete download")
image("offset-negative", one_tensor([64], offset=2 ** 63), "incomplete download")
image("size-huge", one_tensor([2 ** 40, 2 ** 20]), "incomplete download")
image("no-data-at-all", padded(header(1, 0) + tensor("w", [4]), 0), "16 are missing", "tensor 'w'")
image("last-byte-missing", two_tensors("a", 0, "b", 64, n_data=127), "1 are missing", "tensor 'b'")
image("overlap-whole", two_tensors("a", 0, "b", 0), "tensors 'a'", "'b'", "overlap")
image("overlap-part", two_tensors("a", 0, "b", 32), "tensors 'a'", "'b'", "overlap")
image("overlap-backwards", two_tensors("a", 64, "b", 32), "overlap")


# ---- real models, half downloaded (C06) ----

def cut(name, where, *says):
    def build(folder):
        with open(fc.zoo_path("zoo-v3"), "rb") as f:
            data = f.read()
        return commands(write_file(folder, name + ".gguf", data[:where(data)]))
    suite.add("container", name, build, name + ".gguf: ", *says)


def header_end(data):
    last = data.rindex(b"output.weight")
    return last + len("output.weight") + 4 + 2 * 8 + 4 + 8


cut("cut-at-header-end", header_end, "incomplete download", "token_embd.weight")
cut("cut-in-tensor-names", lambda d: d.index(b"blk.2.attn_q_b"), "tensor record", "the file ends")
cut("cut-in-vocabulary", lambda d: d.index(b"tokenizer.ggml.tokens") + 500, "tokenizer.ggml.tokens")
cut("cut-mid-tensor", lambda d: len(d) // 2, "incomplete download", "are missing")
cut("cut-one-byte", lambda d: len(d) - 1, "and 1 are missing", "incomplete download")


# ---- whole files whose model makes no sense (1.5 items 9 and 11; C03, C04, C09) ----

def model(name, zoo_name, edit, *says, settings=()):
    def build(folder):
        m = fc.zoo(zoo_name)
        edit(m)
        path = os.path.join(folder, name + ".gguf")
        ge.write(path, m)
        return [("run", "-m", path, "-p", "x", *settings)]
    suite.add("model", name, build, *says)


def put(suffix, kind, value, elem=None):
    return lambda m: m.put(suffix, kind, value, elem)


ARCH = "deepseek2."
for suffix, says in (
        ("block_count", "block_count is 0"), ("context_length", "context_length is 0"),
        ("embedding_length", "embedding_length is 0"), ("feed_forward_length", "feed_forward_length is 0"),
        ("attention.head_count", "attention.head_count is 0"), ("attention.head_count_kv", "head_count_kv is 0"),
        ("vocab_size", "vocab_size is 0"), ("expert_used_count", "expert_used_count is 0"),
        ("attention.q_lora_rank", "q_lora_rank is 0"), ("attention.kv_lora_rank", "kv_lora_rank is 0"),
        ("attention.key_length", "key_length is 0"), ("attention.value_length", "value_length is 0"),
        ("attention.key_length_mla", "key_length_mla is 0"), ("attention.value_length_mla", "value_length_mla is 0"),
        ("expert_feed_forward_length", "expert_feed_forward_length is 0"), ("expert_count", "expert_count is 0"),
        ("expert_shared_count", "expert_shared_count is 0"), ("rope.dimension_count", "rope.dimension_count is 0"),
        ("expert_group_used_count", "expert_group_used_count is 0"),
        ("rope.scaling.original_context_length", "original_context_length is 0")):
    model("zero-" + suffix, "zoo-v3", put(suffix, ge.U32, 0), ARCH + suffix, says)
for suffix, says in (("attention.layer_norm_rms_epsilon", "is 0; a finite, positive"),
                     ("rope.freq_base", "is 0; a finite, positive"), ("rope.scaling.factor", "is 0; YaRN stretches")):
    model("zero-" + suffix, "zoo-v3", put(suffix, ge.F32V, 0.0), ARCH + suffix, says)
for suffix, says in (("attention.indexer.head_count", "head_count is 0"), ("attention.indexer.key_length", "is 0"),
                     ("attention.indexer.top_k", "top_k is 0")):
    model("zero-" + suffix, "zoo-glm5", put(suffix, ge.U32, 0), "glm-dsa." + suffix, says)
for value in (float("nan"), float("inf"), -1.0):
    model(f"eps-{value}", "zoo-v3", put("attention.layer_norm_rms_epsilon", ge.F32V, value), "layer_norm_rms_epsilon")
model("base-nan", "zoo-v3", put("rope.freq_base", ge.F32V, float("nan")), "rope.freq_base", "nan")
model("scale-inf", "zoo-v3", put("expert_weights_scale", ge.F32V, float("inf")), "expert_weights_scale", "inf")

model("blocks-513", "zoo-v3", put("block_count", ge.U32, 513), "block_count is 513", "at most 512")
model("blocks-10-9", "zoo-v3", put("block_count", ge.U32, 10 ** 9), "block_count is 1000000000", "at most 512")
model("blocks-u64", "zoo-v3", put("block_count", ge.U64, 2 ** 40), "block_count", "1099511627776")
model("blocks-negative", "zoo-v3", put("block_count", ge.I32, -4), "block_count", "-4")
model("blocks-one-more", "zoo-v3", put("block_count", ge.U32, 5), "block_count is 5", "no tensors of blk.4")
model("context-2-31", "zoo-v3", put("context_length", ge.U32, 2 ** 31), "context_length is 2147483648", "at most")
model("heads-100000", "zoo-v3", put("attention.head_count", ge.U32, 100000), "head_count is 100000", "at most 1024")
model("experts-2-31", "zoo-v3", put("expert_count", ge.U32, 2 ** 31), "expert_count is 2147483648")
model("experts-used-17", "zoo-v3", put("expert_used_count", ge.U32, 17), "expert_used_count is 17", "between 1 and 16")
model("groups-3", "zoo-v3", put("expert_group_count", ge.U32, 3), "expert_group_count is 3", "does not divide the 16")
model("groups-used-5", "zoo-v3", put("expert_group_used_count", ge.U32, 5), "is 5; between 1 and 4")
model("gating-9", "zoo-v3", put("expert_gating_func", ge.U32, 9), "expert_gating_func is 9", "softmax")
model("rope-odd", "zoo-v3", put("rope.dimension_count", ge.U32, 15), "rope.dimension_count is 15")
model("kv-lora-64", "zoo-v3", put("attention.kv_lora_rank", ge.U32, 64), "kv_lora_rank is 64", "makes it 32")
model("dense-beyond-all", "zoo-v3", put("leading_dense_block_count", ge.U32, 9), "is 9, but the model has 4 layers")
model("top-k-2-31", "zoo-glm5", put("attention.indexer.top_k", ge.U32, 2 ** 31), "indexer.top_k")
model("heads-as-text", "zoo-v3", put("attention.head_count", ge.STRING, b"four"), "attention.head_count", "string")
model("heads-as-float", "zoo-v3", put("attention.head_count", ge.F32V, 4.0), "attention.head_count", "f32")
model("heads-array-short", "zoo-v3", put("attention.head_count", ge.ARRAY, [4, 4, 4], ge.I32), "has 3 entries")
model("heads-array-empty", "zoo-v3", put("attention.head_count", ge.ARRAY, [], ge.I32), "attention.head_count")
model("eps-as-text", "zoo-v3", put("attention.layer_norm_rms_epsilon", ge.STRING, b"1e-6"), "rms_epsilon", "string")
model("longrope", "zoo-glm5", put("rope.scaling.type", ge.STRING, b"longrope"), "rope.scaling.type", "'longrope'")
model("yarn-shrinks", "zoo-v3", put("rope.scaling.factor", ge.F32V, 0.5), "rope.scaling.factor", "at least 1")
for suffix in ("block_count", "context_length", "attention.head_count", "attention.kv_lora_rank"):
    model("no-" + suffix, "zoo-v3", lambda m, s=suffix: m.drop(s), ARCH + suffix, "is missing")


def architecture(value, kind=ge.STRING):
    def edit(m):
        m.kv["general.architecture"] = ge.Key(kind, value)
    return edit


model("architecture-unknown", "zoo-v3", architecture(b"llama"), "architecture 'llama' is not supported", "glm-dsa")
model("architecture-number", "zoo-v3", architecture(3, ge.U32), "general.architecture", "u32")
model("architecture-empty", "zoo-v3", architecture(b""), "general.architecture")
model("architecture-hostile", "zoo-v3", architecture(b"\x1b[31m\xff\n"), "general.architecture", "is not supported")
model("architecture-long", "zoo-v3", architecture(b"a" * 100000), "general.architecture", "is not supported")
model("architecture-missing", "zoo-v3", lambda m: m.kv.pop("general.architecture"), "general.architecture is missing")


def reshape(name, dims):
    """Other dimensions, and as many bytes as they need."""
    def edit(m):
        t = m.find(name)
        n = ge.ELEMENT_BYTES[t.type]
        for d in dims:
            n *= d
        t.dims, t.data = list(dims), (t.data * (n // max(len(t.data), 1) + 1))[:n]
    return edit


def rename(old, new):
    def edit(m):
        m.find(old).name = new
    return edit


def poison(name, value, at=3):
    def edit(m):
        t = m.find(name)
        numbers = t.numbers()
        numbers[at] = value
        t.data = numbers.tobytes()
    return edit


model("norm-nan", "zoo-v3", poison("blk.1.ffn_norm.weight", float("nan")), "blk.1.ffn_norm.weight", "NaN")
model("norm-inf", "zoo-v3", poison("output_norm.weight", float("inf")), "output_norm.weight", "infinite")
model("kv-norm-nan", "zoo-v3", poison("blk.0.attn_kv_a_norm.weight", float("-inf")), "attn_kv_a_norm.weight", "inf")
model("router-bias-nan", "zoo-v3", poison("blk.2.exp_probs_b.bias", float("nan")), "blk.2.exp_probs_b.bias", "NaN")
model("index-norm-nan", "zoo-glm5", poison("blk.0.indexer.k_norm.bias", float("nan")), "indexer.k_norm.bias", "NaN")
model("tensor-dim-zero", "zoo-v3", reshape("blk.1.ffn_up.weight", [64, 0]), "blk.1.ffn_up.weight", "[64, 0]")
model("embedding-empty", "zoo-v3", reshape("token_embd.weight", [64, 0]), "token_embd.weight")
model("embedding-short", "zoo-v3", reshape("token_embd.weight", [64, 200]), "264", "200")
model("embedding-1d", "zoo-v3", reshape("token_embd.weight", [64]), "token_embd.weight")
model("experts-one-short", "zoo-v3", reshape("blk.2.ffn_down_exps.weight", [32, 64, 15]), "[32, 64, 15]", "was expected")
model("norm-two-dims", "zoo-v3", reshape("blk.1.attn_norm.weight", [64, 2]), "blk.1.attn_norm.weight is [64, 2]")
model("layer-number-huge", "zoo-v3", rename("blk.3.attn_norm.weight", "blk.99999999999.attn_norm.weight"),
      "blk.99999999999.attn_norm.weight", "at most 512")
model("tensor-renamed", "zoo-v3", rename("blk.1.attn_kv_a_mqa.weight", "blk.1.attn_kv_mqa.weight"),
      "blk.1.attn_kv_a_mqa.weight", "is missing", "'blk.1.attn_kv_mqa.weight'")


def prefix(m):
    for t in m.tensors:
        t.name = "model." + t.name


def no_tensors(m):
    m.tensors = []


model("all-names-prefixed", "zoo-v3", prefix, "is missing", "prefix 'model.'")
model("no-tensors", "zoo-v3", no_tensors, "blk.0.attn_norm.weight", "is missing", "get the whole file")
model("expert-missing", "zoo-v3", lambda m: m.replace(["blk.3.ffn_up_exps.weight"], []), "ffn_up_exps.weight",
      "is missing")
model("as-memory-too", "zoo-v3", poison("blk.1.ffn_norm.weight", float("nan")), "blk.1.ffn_norm.weight",
      settings=("-s", "engine.mmap=false"))

for zoo_name in ("zoo-v3", "zoo-glm5"):
    def written_anew(folder, name=zoo_name):
        path = os.path.join(folder, "good.gguf")
        ge.write(path, fc.zoo(name))
        return [("inspect", path), ("run", "-m", path, "-p", "x", "-n", "2"), ("tokenize", "-m", path, "-p", "x")]
    suite.control(zoo_name, written_anew, 0)
suite.control("small", lambda folder: [("inspect", write_file(folder, "s.gguf", two_tensors("a", 0, "b", 64)))], 0)

if __name__ == "__main__":
    assert U8 == 0 and u16(1) == b"\1\0"
    suite.main({"*": 80, "container": 40, "model": 40})
