"""test_hostile_sets.py - what stands beside or inside a model and is wrong: sets of shards, INIs, chat templates and
tokenizers, golden files. Not here: single GGUF files (test_hostile_gguf.py).
SPDX-License-Identifier: MIT
"""
import os
import struct

import fault_case as fc
from fault_case import ge, write_file

suite = fc.Suite()
I32 = 26

# ---- sets of shards ----


def shard_path(folder, i, n=3):
    return ge.shard_path(os.path.join(folder, "m"), i, n)


def in_thirds(m):
    return [m.tensors[0::3], m.tensors[1::3], m.tensors[2::3]]


def shards(*says, open_shard=0, edit=None, **more):
    """Three shards of one model, written with `more` (gguf_edit.write_shards), then damaged by `change`."""
    def keep(change):
        def build(folder):
            m = fc.zoo("zoo-v3")
            if edit is not None:
                edit(m)
            paths = ge.write_shards(os.path.join(folder, "m"), m, in_thirds(m), **more)
            path = change(paths) or paths[open_shard]
            return [("inspect", path), ("run", "-m", path, "-p", "x"), ("tokenize", "-m", path, "-p", "x")]
        suite.add("shards", change.__name__, build, *says)
        return change
    return keep


def rewrite(path, **changes):
    """Writes a shard anew with other split keys; None takes one out."""
    m = ge.read(path)
    for name, value in changes.items():
        if value is None:
            del m.kv["split." + name]
        else:
            m.kv["split." + name] = value
    ge.write(path, m)


@shards("m-00001-of-00003.gguf: ", "shard 2 of 3 is missing or unreadable: m-00002-of-00003.gguf")
def middle_missing(paths):
    os.unlink(paths[1])


@shards("shard 3 of 3 is missing or unreadable: m-00003-of-00003.gguf")
def last_missing(paths):
    os.unlink(paths[2])


@shards("this is shard 2 of 3", "open its first one instead: m-00001-of-00003.gguf", open_shard=1)
def second_given(paths):
    pass


@shards("m-00003-of-00003.gguf: ", "the file is empty")
def last_empty(paths):
    open(paths[2], "wb").close()


@shards("m-00002-of-00003.gguf: ", "not a GGUF file")
def middle_is_text(paths):
    with open(paths[1], "wb") as f:
        f.write(b"404: not found\n")


@shards("m-00003-of-00003.gguf: ", "incomplete download")
def last_cut(paths):
    os.truncate(paths[2], os.path.getsize(paths[2]) - 1)


@shards("m-00002-of-00003.gguf: ", "an incomplete download or a damaged file")
def middle_cut_in_header(paths):
    os.truncate(paths[1], 200)


@shards("m-00002-of-00003.gguf: ", "the name says shard 2, but the file says shard 3")
def swapped(paths):
    os.rename(paths[1], paths[1] + "x")
    os.rename(paths[2], paths[1])
    os.rename(paths[1] + "x", paths[2])


@shards("m-00003-of-00003.gguf: ", "the name says shard 3, but the file says shard 1")
def last_is_a_link_to_the_first(paths):
    os.unlink(paths[2])
    os.symlink(paths[0], paths[2])


@shards("shard 2 of 3 is missing or unreadable", "m-00002-of-00003.gguf", "directory")
def middle_is_a_folder(paths):
    os.unlink(paths[1])
    os.mkdir(paths[1])


@shards("shard 2 of 3 is missing or unreadable", "m-00002-of-00003.gguf", "pipe")
def middle_is_a_pipe(paths):
    os.unlink(paths[1])
    os.mkfifo(paths[1])


@shards("shard 2 of 3 is missing or unreadable", "m-00002-of-00003.gguf", "symbolic links")
def middle_is_a_link_to_itself(paths):
    os.unlink(paths[1])
    os.symlink(os.path.basename(paths[1]), paths[1])


@shards("its name must end in -00001-of-00003.gguf", "rename it")
def first_renamed(paths):
    renamed = os.path.join(os.path.dirname(paths[0]), "model.gguf")
    os.rename(paths[0], renamed)
    return renamed


@shards("the name says shard 1 of 3, but the file says shard 1 of 4", count=4)
def count_4(paths):
    pass


@shards("the model has 65535 shards", "the limit is 4096")
def count_65535(paths):
    rewrite(paths[0], count=ge.Key(ge.U16, 65535))


@shards("split.count", "70000", "m-00001-of-00003.gguf")
def count_beyond_16_bits(paths):
    rewrite(paths[0], count=ge.Key(ge.U32, 70000))


@shards("split.count", "-3")
def count_negative(paths):
    rewrite(paths[0], count=ge.Key(ge.I32, -3))


@shards("split.count", "string")
def count_as_text(paths):
    rewrite(paths[0], count=ge.Key(ge.STRING, b"3"))


@shards("split.count is 3, but split.no is missing")
def number_missing(paths):
    rewrite(paths[0], no=None)


@shards("split.no is 7 and split.count is 3")
def number_beyond_count(paths):
    rewrite(paths[0], no=ge.Key(ge.U16, 7))


@shards("split.count is 3, but split.tensors.count is missing")
def total_missing(paths):
    rewrite(paths[0], **{"tensors.count": None})


@shards("hold 65 tensors together", "split.tensors.count says 66", total=66)
def total_wrong(paths):
    pass


@shards("m-00003-of-00003.gguf: ", "this shard's set has 99 tensors, the first one's 65")
def total_of_the_last_differs(paths):
    rewrite(paths[2], **{"tensors.count": ge.Key(ge.I32, 99)})


@shards("m-00002-of-00003.gguf: ", "it has no split.no", "not part of a split model")
def middle_without_keys(paths):
    rewrite(paths[1], no=None)


@shards("m-00002-of-00003.gguf: ", "belongs to a set of 5, the first one to a set of 3")
def middle_of_another_set(paths):
    rewrite(paths[1], count=ge.Key(ge.U16, 5))


@shards("m-00003-of-00003.gguf: ", "is in shard 1 and again in shard 3")
def tensor_twice(paths):
    m, first = ge.read(paths[2]), ge.read(paths[0])
    m.tensors[0] = first.tensors[0]
    ge.write(paths[2], m)


@shards("m-00002-of-00003.gguf: ", "general.alignment is 48", "power of two")
def middle_misaligned(paths):
    rewrite(paths[1])
    m = ge.read(paths[1])
    m.kv["general.alignment"] = ge.Key(ge.U32, 48)
    ge.write(paths[1], m)


# ---- INIs ----


def ini(name, text, *says):
    def build(folder):
        path = write_file(folder, name + ".ini", text if isinstance(text, bytes) else text.encode())
        return [("config", "-c", path), ("run", "-c", path, "-m", fc.zoo_path("zoo-v3"), "-p", "x")]
    suite.add("ini", name, build, name + ".ini", *says)


ini("section-open", "[kv\nblock=32\n", ".ini:1", "[kv has no closing `]`")
ini("section-unknown", "[engin]\n", ".ini:1", "unknown section [engin]", "[engine]")
ini("key-unknown", "[kv]\ndtyp=f32\n", ".ini:2", "unknown key dtyp in [kv]", "did you mean dtype?")
ini("key-elsewhere", "[engine]\ndtype=f32\n", ".ini:2", "it belongs to [kv]")
ini("key-twice", "[kv]\nblock=32\n\nblock=64\n", ".ini:4", "set twice in this file, first in line 2")
ini("value-unknown", "[kv]\ndtype=bf61\n", ".ini:2", "[kv] dtype = bf61", "did you mean bf16?")
ini("value-huge", "[kv]\nblock=99999999999999999999\n", ".ini:2", "expected a power of two")
ini("value-nan", "[sample]\ntemp=nan\n", ".ini:2", "[sample] temp = nan", "expected a number from 0 to 100")
ini("layers-backwards", "[slots]\nmoe@layers=3-1 = ref\n", ".ini:2", "a range A-B with A <= B")
ini("before-any-section", "block = 32\n", ".ini:1", "stands before the first [section]")
ini("escape-sequence", "[kv]\n# \x1b]0;owned\x07\n", ".ini:2", "control character 0x1b")
ini("latin-1", b"# caf\xe9\n", ".ini:1", "bytes that are not UTF-8")
ini("utf-16", b"\xff\xfe[\0k\0v\0]\0", "UTF-16 text")
ini("zero-bytes", bytes(3000), "byte 1 is NUL", "give an INI file")
ini("zero-byte-in-value", b"[kv]\ndtype=f32\0junk\n", "byte 15 is NUL")
ini("program", b"\x7fELF\x02\x01\x01" + bytes(100), "byte 8 is NUL", "give an INI file")
ini("json", '{"kv": {"block": 32}}\n', ".ini:1", "stands before the first [section]")
ini("one-long-line", "[plugin.x]\nk=" + "a" * (600 << 10) + "\n", "line")
ini("two-megabytes", "; comment\n" * (200 << 10), "bytes, more than the")
ini("many-sections", "[plugin.x]\n" * 20000 + "[nonsense]\n", ".ini")
ini("many-brackets", "[" * 100000, ".ini:1")


@suite.case("ini", "nowhere.ini", "cannot be opened")
def ini_missing(folder):
    return [("config", "-c", os.path.join(folder, "nowhere.ini"))]


@suite.case("ini", "directory")
def ini_is_a_folder(folder):
    return [("config", "-c", folder)]


@suite.case("ini", "p.ini", "pipe")
def ini_is_a_pipe(folder):
    path = os.path.join(folder, "p.ini")
    os.mkfifo(path)
    return [("config", "-c", path)]


# ---- chat templates ----


def text_model(kind, name, edit, *says, chat=False, more=()):
    """A good model with other tokenizer keys."""
    def build(folder):
        m = fc.zoo("zoo-v3")
        edit(m)
        path = os.path.join(folder, name + ".gguf")
        ge.write(path, m)
        runs = [("run", "-m", path, "-p", "x", "--chat")]
        if not chat:
            runs += [("tokenize", "-m", path, "-p", "x"), ("run", "-m", path, "-p", "x")]
        return runs + [(*args[:1], "-m", path, *args[1:]) for args in more]
    suite.add(kind, name, build, *says)


def key(name, kind, value, elem=None):
    def edit(m):
        m.kv[name] = ge.Key(kind, value, elem)
    return edit


TEMPLATE = "tokenizer.chat_template"


def template(name, text, *says):
    raw = text if isinstance(text, bytes) else text.encode()
    text_model("template", name, key(TEMPLATE, ge.STRING, raw), *says, chat=True)


template("empty", "", TEMPLATE, "none of the known formats")
template("other-family", "{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}", TEMPLATE, "none of the known")
template("nested-50000", "{% if x %}" * 50000, TEMPLATE, "none of the known formats")
template("one-megabyte-of-braces", "{" * (1 << 20), TEMPLATE, "none of the known formats")
template("almost-glm-a-thousand-times", "[gMASK]<sop><|user|><|assistant|" * 1000, TEMPLATE, "none of the known formats")
template("bytes", bytes(range(256)) * 100, TEMPLATE, "none of the known formats")
template("glm-without-its-tokens", "[gMASK]<sop><|user|>\n{{ x }}<|assistant|>", "[gMASK]", "chat format \"glm\"",
         "vocabulary has none")
template("kimi-without-its-tokens", "<|im_system|><|im_user|><|im_assistant|><|im_middle|><|im_end|>", "<|im_user|>",
         "chat format \"kimi\"")
text_model("template", "number", key(TEMPLATE, ge.U32, 7), TEMPLATE, "u32", "expected a string")
text_model("template", "array", key(TEMPLATE, ge.ARRAY, [b"a", b"b"], ge.STRING), TEMPLATE, "expected a string")
text_model("template", "missing", lambda m: None, "no chat template", chat=True)


def deepseek2_without_begin(m):
    m.kv[TEMPLATE] = ge.Key(ge.STRING, b"bos_token eos_token User: \n\nAssistant: Assistant:")
    del m.kv["tokenizer.ggml.bos_token_id"]


text_model("template", "needs-begin-token", deepseek2_without_begin, "tokenizer.ggml.bos_token_id", "deepseek2", chat=True)

# ---- tokenizers ----

TOK = "tokenizer.ggml."


def tokens(change):
    """Changes the vocabulary's texts and types; its length stays, as the embedding has so many rows."""
    def edit(m):
        texts, types = list(m.kv[TOK + "tokens"].value), list(m.kv[TOK + "token_type"].value)
        change(texts, types)
        m.kv[TOK + "tokens"] = ge.Key(ge.ARRAY, texts, ge.STRING)
        m.kv[TOK + "token_type"] = ge.Key(ge.ARRAY, types, ge.I32)
    return edit


def set_text(i, text, kind=None):
    def change(texts, types):
        texts[i] = text
        if kind is not None:
            types[i] = kind
    return tokens(change)


def tokenizer(name, edit, *says, **more):
    text_model("tokenizer", name, edit, *says, **more)


tokenizer("no-model-key", lambda m: m.kv.pop(TOK + "model"), TOK + "model", "no tokenizer")
tokenizer("other-model", key(TOK + "model", ge.STRING, b"llama"), TOK + "model", "\"llama\" is not supported")
tokenizer("model-hostile", key(TOK + "model", ge.STRING, b"\x1b[2J\n\xff"), TOK + "model", "is not supported")
tokenizer("model-number", key(TOK + "model", ge.U32, 1), TOK + "model", "expected a string")
tokenizer("pre-unknown", key(TOK + "pre", ge.STRING, b"gpt-3"), TOK + "pre", "\"gpt-3\" is not supported", "known are")
tokenizer("pre-hostile", key(TOK + "pre", ge.STRING, b"\0\xff" * 9000), TOK + "pre", "is not supported")
tokenizer("tokens-missing", lambda m: m.kv.pop(TOK + "tokens"), TOK + "tokens", "no vocabulary")
tokenizer("tokens-empty", key(TOK + "tokens", ge.ARRAY, [], ge.STRING), TOK + "tokens", "no vocabulary")
tokenizer("tokens-number", key(TOK + "tokens", ge.U32, 5), TOK + "tokens", "expected an array")
tokenizer("tokens-of-numbers", key(TOK + "tokens", ge.ARRAY, [1, 2], ge.U32), TOK + "tokens", "expected an array")
tokenizer("too-many-tokens", tokens(lambda x, t: (x.extend(b"t%d" % i for i in range(36)), t.extend([1] * 36))),
          TOK + "tokens has 300 entries", "264 rows")
tokenizer("types-short", key(TOK + "token_type", ge.ARRAY, [1] * 100, ge.I32), TOK + "token_type", "264", "100")
tokenizer("types-scalar", key(TOK + "token_type", ge.U32, 1), TOK + "token_type", "expected an array")
tokenizer("type-77", tokens(lambda x, t: t.__setitem__(5, 77)), TOK + "token_type", "type 77")
tokenizer("type-negative", tokens(lambda x, t: t.__setitem__(5, -1)), TOK + "token_type", "type -1")
tokenizer("same-text-twice", tokens(
    lambda x, t: (x.__setitem__(260, b"same"), x.__setitem__(261, b"same"))), "entries 260 and 261", "\"same\"")
tokenizer("byte-without-entry", set_text(65, b"<none>"), "byte 0x")
tokenizer("token-of-64-kib", set_text(260, b"x" * 65536), TOK + "tokens", "65536 bytes")
tokenizer("special-of-2-kib", set_text(260, b"x" * 2048, 3), TOK + "tokens", "entry 260", "2048 bytes")
for line in (b"ab", b"", b" ", b"a ", b" b"):
    tokenizer("merge-" + repr(line), key(TOK + "merges", ge.ARRAY, [b"a b", line], ge.STRING), TOK + "merges",
              "merge 1 (")
tokenizer("merges-number", key(TOK + "merges", ge.U32, 1), TOK + "merges", "expected an array")
tokenizer("merges-missing", set_text(260, b"ab", 1), TOK + "merges", "no merges")
for which in ("bos", "eos", "eot", "eom"):
    tokenizer(f"{which}-outside", key(f"{TOK}{which}_token_id", ge.U32, 264), f"{TOK}{which}_token_id",
              "id 264 is outside the vocabulary of 264")
tokenizer("eos-all-ones", key(TOK + "eos_token_id", ge.U32, 2 ** 32 - 1), TOK + "eos_token_id", "4294967295", "outside")
tokenizer("eos-negative", key(TOK + "eos_token_id", ge.I32, -1), TOK + "eos_token_id", "-1")
tokenizer("eos-text", key(TOK + "eos_token_id", ge.STRING, b"7"), TOK + "eos_token_id", "string")


def begin_without_id(m):
    del m.kv[TOK + "bos_token_id"]
    m.kv[TOK + "add_bos_token"] = ge.Key(ge.BOOL, 1)


tokenizer("begin-without-id", begin_without_id, TOK + "add_bos_token", "bos_token_id is missing")

# ---- golden files ----


def golden_model(n_ids=3, n_rows=3):
    ids = struct.pack(f"<{n_ids}i", *range(10, 10 + n_ids))
    kv = {"general.architecture": ge.Key(ge.STRING, b"golden"), "golden.count": ge.Key(ge.U32, 1),
          "golden.0.text": ge.Key(ge.STRING, b"three tokens")}
    hidden = [ge.Tensor(f"0.hidden.{i}", [64, n_ids], ge.F32, bytes(4 * 64 * n_ids)) for i in range(5)]
    return ge.Model(kv, [ge.Tensor("0.ids", [n_ids], I32, ids),
                         ge.Tensor("0.logits", [264, n_rows], ge.F32, bytes(4 * 264 * n_rows)),
                         ge.Tensor("0.greedy", [2], I32, struct.pack("<2i", 1, 2)), *hidden])


def verify(path):
    return [("verify", "-m", fc.zoo_path("zoo-v3"), "--golden", path)]


def golden(name, edit, *says):
    def build(folder):
        m = golden_model()
        edit(m)
        path = os.path.join(folder, name + ".golden.gguf")
        ge.write(path, m)
        return verify(path)
    suite.add("golden", name, build, name + ".golden.gguf", *says)


def drop(*names):
    return lambda m: m.replace(list(names), [])


def other(name, dims=None, kind=None, data=None):
    def edit(m):
        t = m.find(name)
        t.dims, t.type = dims or t.dims, kind if kind is not None else t.type
        n = 4
        for d in t.dims:
            n *= d
        t.data = data if data is not None else bytes(n)
    return edit


def extra(name, dims):
    def edit(m):
        m.tensors.append(ge.Tensor(name, dims, ge.F32, bytes(4 * dims[0] * dims[1])))
    return edit


golden("architecture", lambda m: m.kv.update({"general.architecture": ge.Key(ge.STRING, b"deepseek2")}),
       "architecture 'deepseek2', not 'golden'")
golden("architecture-none", lambda m: m.kv.pop("general.architecture"), "not 'golden'")
golden("count-missing", lambda m: m.kv.pop("golden.count"), "golden.count is missing")
for kind, value in ((ge.U32, 0), (ge.U32, 4097), (ge.U64, 2 ** 63)):
    golden(f"count-{value}", key("golden.count", kind, value), f"golden.count is {value}", "from 1 to 4096")
golden("count-negative", key("golden.count", ge.I32, -1), "golden.count", "-1")
golden("count-text", key("golden.count", ge.STRING, b"1"), "golden.count", "string")
golden("count-2-of-1", key("golden.count", ge.U32, 2), "1.ids", "is missing")
golden("text-number", key("golden.0.text", ge.U32, 1), "golden.0.text", "expected a string")
golden("ids-missing", drop("0.ids"), "0.ids", "is missing")
golden("ids-float", other("0.ids", kind=ge.F32), "0.ids", "type F32", "must be I32")
golden("ids-none", other("0.ids", dims=[0]), "0.ids", "dimensions 0")
golden("ids-square", other("0.ids", dims=[3, 2]), "0.ids", "1 are expected")
golden("id-negative", other("0.ids", data=struct.pack("<3i", 1, -1, 2)), "0.ids", "id -1 at place 1", "0 to 263")
golden("id-outside", other("0.ids", data=struct.pack("<3i", 1, 2, 264)), "0.ids", "id 264 at place 2")
golden("logits-missing", drop("0.logits"), "0.logits", "is missing")
golden("logits-integer", other("0.logits", kind=I32), "0.logits", "type I32", "must be F32")
golden("logits-narrow", other("0.logits", dims=[200, 3]), "0.logits", "rows of 200", "vocabulary is 264")
golden("logits-more-rows", other("0.logits", dims=[264, 4]), "0.logits", "4 rows", "only 3 tokens")
golden("logits-cube", other("0.logits", dims=[264, 3, 2]), "0.logits", "2 are expected")
golden("greedy-outside", other("0.greedy", data=struct.pack("<2i", 1, 2 ** 31 - 1)), "0.greedy", "id 2147483647 at place 1")
golden("greedy-float", other("0.greedy", kind=ge.F32), "0.greedy", "type F32")
golden("hidden-hole", drop("0.hidden.2"), "'0.hidden.2' is missing", "0.hidden.3 is there")
golden("hidden-last-missing", drop("0.hidden.4"), "'0.hidden.4' is missing", "0.hidden.0 to 0.hidden.4")
golden("hidden-one-more", extra("0.hidden.5", [64, 3]), "'0.hidden.5'", "one too many", "4 layers")
golden("hidden-wide", other("0.hidden.1", dims=[65, 3]), "0.hidden.1", "rows of 65", "width is 64")
golden("hidden-rows", other("0.hidden.1", dims=[64, 2]), "'0.hidden.1'", "2 rows", "3 tokens")


@suite.case("golden", "odd.golden.gguf", "0.ids", "not aligned to 4 bytes")
def golden_misaligned(folder):
    m = golden_model()
    for pad in range(4):  # with alignment 1 the data begins where the header ends; one of these ends is odd
        m.kv["golden.0.text"] = ge.Key(ge.STRING, b"x" * pad)
        head = ge.header({**m.kv, "general.alignment": ge.Key(ge.U32, 1)}, m.tensors, [0] * len(m.tensors))
        if len(head) % 4 == 1:
            break
    path = os.path.join(folder, "odd.golden.gguf")
    ge.write(path, m, alignment=1)
    return verify(path)


@suite.case("golden", "cut.golden.gguf", "incomplete download")
def golden_cut(folder):
    path = os.path.join(folder, "cut.golden.gguf")
    ge.write(path, golden_model())
    os.truncate(path, os.path.getsize(path) - 100)
    return verify(path)


@suite.case("golden", "text.golden.gguf", "not a GGUF file")
def golden_text(folder):
    return verify(write_file(folder, "text.golden.gguf", b"[1, 2, 3]"))


@suite.case("golden", "zoo-v2lite.golden.gguf", "made for another model")
def golden_of_another_model(_folder):
    return [("verify", "-m", fc.zoo_path("zoo-glm47flash"), "--golden", fc.zoo_path("zoo-v2lite.golden"))]


# ---- what all of them are made from is good ----

def good_shards(folder):
    m = fc.zoo("zoo-v3")
    paths = ge.write_shards(os.path.join(folder, "m"), m, in_thirds(m))
    return [("inspect", paths[0]), ("run", "-m", paths[0], "-p", "x", "-n", "2")]


def good_golden(folder):
    path = os.path.join(folder, "g.golden.gguf")
    ge.write(path, golden_model())
    return verify(path)


suite.control("shards", good_shards, 0)
suite.control("golden", good_golden, 1)  # readable, and zeros are not what the model computes
suite.control("ini", lambda f: [("config", "-c", write_file(f, "a.ini", b"[kv]\nblock=32\n"))], 0)

if __name__ == "__main__":
    suite.main({"*": 30, "shards": 15, "ini": 15, "template": 8, "tokenizer": 15, "golden": 15})
