"""test_files.py - hostile and broken files and texts; inspect, tokenize, detokenize.

SPDX-License-Identifier: MIT
"""
import json
import os
import struct
import sys

import tiny_gguf
from cli_case import MODEL, SOURCE, ZOO_V3, ZOO_V3_GOLDEN, CliCase, main, read, run


class BrokenModels(CliCase):
    """Every command that opens a model refuses these with status 2 and one sentence."""

    def each(self, path, says=(), code=None):
        self.refused("run", "-m", path, "-p", "x", says=says, code=code)
        self.refused("tokenize", "-m", path, "-p", "x", says=says, code=code)
        self.refused("verify", "-m", path, "--golden", ZOO_V3_GOLDEN, says=says, code=code)
        self.refused("ppl", "-m", path, "-p", "x", says=says, code=code)

    def test_missing_directory_empty_text(self):
        self.each(self.tmp + "/none.gguf", says="none.gguf", code="E_IO")
        self.each(self.tmp, says="directory", code="E_IO")
        self.each(self.file("empty.gguf", b""), says="empty", code="E_FORMAT")
        self.each(self.file("text.gguf", b"once upon a time\n"), says="not a GGUF", code="E_FORMAT")
        for path in (self.tmp + "/none.gguf", self.tmp, self.file("t", b"text"), self.file("e", b"")):
            self.refused("inspect", path)

    def test_long_paths_keep_the_file_name(self):
        deep = os.path.join(self.tmp, "d" * 200, "e" * 200)
        os.makedirs(deep)
        path = os.path.join(deep, "far.gguf")
        self.each(path, says="far.gguf", code="E_IO")
        with open(path, "wb"):
            pass
        self.each(path, says=("far.gguf", "empty"), code="E_FORMAT")
        self.refused("inspect", path, says="far.gguf")

    def test_truncated(self):
        data = read(ZOO_V3)
        for n in (3, 4, 23, 24, 100, 2000, 9000, len(data) // 2, len(data) - 1):
            path = self.file("cut.gguf", data[:n])
            self.refused("run", "-m", path, "-p", "x", code="E_FORMAT")
            self.refused("inspect", path, code="E_FORMAT")

    def test_wrong_architecture(self):
        data = read(ZOO_V3)
        path = self.file("other.gguf", data.replace(b"deepseek2", b"deepfake2", 1))
        self.each(path, says=("deepfake2", "deepseek2"), code="E_UNSUPPORTED")
        self.each(ZOO_V3_GOLDEN, says="golden", code="E_UNSUPPORTED")
        j = self.good_json("inspect", path)
        self.assertEqual(j["arch"], "deepfake2")
        self.assertIsNone(j["model"])
        self.assertIn("deepfake2", j["cannot_run"]["message"])
        self.assertIn(b"cannot run:", self.good("inspect", path).out)

    def test_missing_tensor(self):
        data = read(ZOO_V3)
        path = self.file("less.gguf", data.replace(b"blk.2.attn_q_b.weight", b"blk.2.attn_q_x.weight", 1))
        self.refused("run", "-m", path, "-p", "x", says="blk.2.attn_q_b.weight", code="E_FORMAT")
        j = self.good_json("inspect", path)
        self.assertIn("blk.2.attn_q_b.weight", j["missing"])
        self.assertIn("blk.2.attn_q_x.weight", j["unused"])
        self.assertIsNotNone(j["cannot_run"])

    def test_nan_in_a_norm_is_bad_input(self):
        data = bytearray(read(ZOO_V3))
        at = tiny_gguf.Reader(bytes(data)).tensors["blk.1.ffn_norm.weight"][2]
        struct.pack_into("<f", data, at + 8, float("nan"))
        self.refused("run", "-m", self.file("nan.gguf", bytes(data)), "-p", "x", says="blk.1.ffn_norm.weight",
                     code="E_NUMERIC")

    def test_nan_while_running_is_status_3(self):
        data = bytearray(read(ZOO_V3))
        at = tiny_gguf.Reader(bytes(data)).tensors["blk.1.attn_output.weight"][2]
        struct.pack_into("<H", data, at, 0x7fc0)  # a quiet NaN in BF16
        path = self.file("nan.gguf", bytes(data))
        r = self.refused_with_prompt_ids(path)
        self.assertIn(b"blk.1", r.err, r)

    def refused_with_prompt_ids(self, path):
        r = run("run", "-m", path, "-p", "x", "-n", "3")
        self.assertEqual((r.rc, r.out), (3, b""), r)
        self.assertEqual(r.err.count(b"\n"), 1, r)
        j = run("run", "-m", path, "-p", "x", "-n", "3", "--json")
        self.assertEqual(j.rc, 3, j)
        self.assertEqual(j.json()["error"]["code"], "E_NUMERIC", j)
        return r

    def test_vocabulary_longer_than_embedding(self):
        reader = tiny_gguf.read(ZOO_V3)
        data = bytearray(reader.data)
        record = reader.tensors["token_embd.weight"][3]
        at = record + 8 + len("token_embd.weight") + 4 + 8
        self.assertEqual(struct.unpack_from("<Q", data, at)[0], 264)
        struct.pack_into("<Q", data, at, 200)
        self.refused("run", "-m", self.file("short.gguf", bytes(data)), "-p", "x", code="E_FORMAT")

    def test_without_tokenizer_everything_but_text_works(self):
        data = read(ZOO_V3)
        path = self.file("mute.gguf", data.replace(b"tokenizer.ggml.model", b"tokenizer.xxxx.model", 1))
        r = run("tokenize", "-m", path, "-p", "x")
        self.assertEqual(r.rc, 2, r)
        self.assertIn(b"tokenizer", r.err)
        r = run("verify", "-m", path, "--golden", ZOO_V3_GOLDEN, "-s", "kv.dtype=f32")
        self.assertEqual(r.rc, 0, r)

    def test_read_into_memory(self):
        a = self.good_json("run", "-m", ZOO_V3, "-p", "hello", "-n", "8", "--temp", "0")
        b = self.good_json("run", "-m", ZOO_V3, "-p", "hello", "-n", "8", "--temp", "0", "-s", "engine.mmap=false")
        self.assertEqual(a["tokens"], b["tokens"])

    def test_shards_read_into_memory(self):
        sys.path.insert(0, os.path.join(SOURCE, "scripts", "lib"))
        import gguf_edit
        m = gguf_edit.read(ZOO_V3)
        paths = gguf_edit.write_shards(os.path.join(self.tmp, "m"), m, [m.tensors[:20], m.tensors[20:21], m.tensors[21:]])
        runs = [self.good_json("run", "-m", path, "-p", "hello", "-n", "8", "--temp", "0", *more)["tokens"]
                for path in (ZOO_V3, paths[0]) for more in ((), ("-s", "engine.mmap=false"))]
        self.assertEqual(runs, runs[:1] * 4)


class Texts(CliCase):
    def test_invalid_utf8(self):
        bad = b"ab\xff\xfec"
        path = self.file("bad.txt", bad)
        for command in (("run",), ("run", "--chat"), ("tokenize",), ("ppl",)):
            self.refused(*command, "-m", MODEL, "-p", bad, says=("byte 2", "0xff"), code="E_ARG")
            self.refused(*command, "-m", MODEL, "-f", path, says=("byte 2", "bad.txt"), code="E_ARG")
            self.refused(*command, "-m", MODEL, stdin=bad, says=("byte 2", "standard input"), code="E_ARG")
        for bad, at in ((b"\xc0\xaf", 0), (b"x\xed\xa0\x80", 1), (b"\xf4\x90\x80\x80", 0), (b"abc\xe2\x82", 3)):
            self.refused("tokenize", "-m", MODEL, "-p", bad, says=f"byte {at} ")
        self.refused("run", "-m", MODEL, "-p", "x", "--chat", "--system", b"\xff", says="--system")

    def test_text_files(self):
        self.refused("run", "-m", MODEL, "-f", self.tmp, says="directory", code="E_IO")
        self.refused("run", "-m", MODEL, "-f", self.tmp + "/none", says="none", code="E_IO")
        self.refused("run", "-m", MODEL, "-f", self.file("empty.txt", b""), says="empty", code="E_ARG")
        self.refused("run", "-m", MODEL, stdin=b"", says="empty")
        self.refused("run", "-m", MODEL, "-p", "", says="empty")

    def test_the_three_sources_agree(self):
        text = "naïve café 日本 🙂\nline two"
        path = self.file("a.txt", text.encode())
        want = self.good_json("tokenize", "-m", MODEL, "-p", text)["ids"]
        self.assertEqual(self.good_json("tokenize", "-m", MODEL, "-f", path)["ids"], want)
        self.assertEqual(self.good_json("tokenize", "-m", MODEL, stdin=text.encode())["ids"], want)
        runs = [self.good_json("run", "-m", MODEL, "-n", "1", *args, stdin=stdin)["prompt_ids"]
                for args, stdin in ((("-p", text), b""), (("-f", path), b""), ((), text.encode() + b"\n"))]
        self.assertEqual(runs, [want] * 3)

    def test_tokens_match_the_recorded_ones(self):
        """The recorded ids are those of trusted text: markers in it are control tokens."""
        path = os.path.join(SOURCE, "tests", "data", "golden", "bp-tiny-glm-dsa.tokens.json")
        cases = json.loads(read(path).decode("utf-8"))
        self.assertGreater(len(cases), 3)
        for text, ids in ((c["text"], c["ids"]) for c in cases):
            if "\0" in text:
                continue  # no command line can carry it
            self.assertEqual(self.good_json("tokenize", "-m", MODEL, "-p", text, "--special")["ids"], ids, text)
            if "<|" not in text:
                self.assertEqual(self.good_json("tokenize", "-m", MODEL, "-p", text)["ids"], ids, text)
            if ids:
                back = self.good_json("detokenize", "-m", MODEL, "--special", *[str(i) for i in ids])
                self.assertEqual(back["text"], text)

    def test_special(self):
        plain = self.good_json("tokenize", "-m", MODEL, "-p", "a<|user|>b")
        special = self.good_json("tokenize", "-m", MODEL, "-p", "a<|user|>b", "--special")
        self.assertNotIn(4093, plain["ids"])
        self.assertEqual(special["ids"][1], 4093)
        self.assertEqual(special["tokens"][1]["text"], "<|user|>")
        ids = [str(i) for i in special["ids"]]
        self.assertEqual(self.good_json("detokenize", "-m", MODEL, *ids)["text"], "ab")
        self.assertEqual(self.good_json("detokenize", "-m", MODEL, "--special", *ids)["text"], "a<|user|>b")

    def test_partial_characters_carry_bytes(self):
        j = self.good_json("tokenize", "-m", MODEL, "-p", "é日🙂")
        raw = b""
        for t in j["tokens"]:
            if "bytes" in t:
                self.assertIn("\ufffd", t["text"])
                self.assertRaises(UnicodeDecodeError, bytes(t["bytes"]).decode)
                self.assertEqual(bytes(t["bytes"]).decode("utf-8", "replace"), t["text"])
                raw += bytes(t["bytes"])
            else:
                raw += t["text"].encode()
        self.assertEqual(raw.decode(), "é日🙂")
        self.assertTrue(any("bytes" in t for t in j["tokens"]))
        cut = [t["id"] for t in j["tokens"]][:-1]
        back = self.good_json("detokenize", "-m", MODEL, *[str(i) for i in cut])
        self.assertEqual(bytes(back["bytes"]).decode("utf-8", "replace"), back["text"])

    def test_text_output(self):
        r = self.good("tokenize", "-m", MODEL, "-p", "hello wor")
        ids = r.out.decode().split()
        self.assertEqual((r.err, self.good("detokenize", "-m", MODEL, *ids).out), (b"", b"hello wor\n"))
        self.assertEqual(self.good("tokenize", "-m", MODEL, "-p", "").out, b"\n")
        self.assertEqual(len(self.good("tokenize", "-m", MODEL, "-p", "hello", "--pieces").out.splitlines()), 3)

    def test_bad_ids(self):
        self.refused("detokenize", "-m", MODEL, says="ID")
        for bad in ("x", "1.5", "4096", "99999999999", "0x10", ""):
            self.refused("detokenize", "-m", MODEL, "5", bad, code="E_ARG")
        self.refused("detokenize", "-m", MODEL, "--", "-1", code="E_ARG")


class Inspect(CliCase):
    def test_json(self):
        j = self.good_json("inspect", MODEL, "--names", "hf")
        want = tiny_gguf.read(MODEL)
        self.assertEqual(j["arch"], "glm-dsa")
        self.assertEqual(set(j["kv"]), set(want.kv))
        for key, value in want.kv.items():
            if isinstance(value, (int, str)) and not isinstance(value, bool) and key != "glm-dsa.expert_weights_norm":
                if not key.endswith("add_bos_token"):
                    self.assertEqual(j["kv"][key], value, key)
        self.assertIs(j["kv"]["tokenizer.ggml.add_bos_token"], False)
        self.assertAlmostEqual(j["kv"]["glm-dsa.attention.layer_norm_rms_epsilon"], 1e-6, delta=1e-12)
        self.assertEqual([(t["name"], t["shape"], t["offset"]) for t in j["tensors"]],
                         [(n, t[0], t[2]) for n, t in want.tensors.items()])
        by_name = {t["name"]: t for t in j["tensors"]}
        self.assertEqual(by_name["token_embd.weight"]["hf"], "model.embed_tokens.weight")
        self.assertEqual(by_name["blk.0.attn_q_a.weight"]["hf"], "model.layers.0.self_attn.q_a_proj.weight")
        self.assertEqual(j["missing"], [])
        self.assertEqual(j["bytes"], os.path.getsize(MODEL))
        self.assertEqual(j["model"]["n_layer"], 5)
        self.assertIsNone(j["cannot_run"])
        self.assertLessEqual({r["kind"] for r in j["report"]}, {"missing", "unused", "assumed", "notes"})

    def test_text(self):
        short, full = self.good("inspect", MODEL).out, self.good("inspect", MODEL, "--tensors").out
        self.assertIn(b"can run: 5 layers", short)
        self.assertNotIn(b"blk.3.attn_q_a.weight", short)
        self.assertIn(b"blk.3.attn_q_a.weight", full)
        self.assertEqual(self.good("inspect", "-m", MODEL).out, short)
        self.refused("inspect", MODEL, "-m", MODEL, says="two files")

    def test_elements(self):
        few = self.good_json("inspect", ZOO_V3)["kv"]["tokenizer.ggml.token_type"]
        self.assertIsInstance(few, str)
        self.assertIn("264 in all", few)
        many = self.good_json("inspect", ZOO_V3, "--elements", "300")["kv"]["tokenizer.ggml.token_type"]
        self.assertEqual(many, tiny_gguf.read(ZOO_V3).kv["tokenizer.ggml.token_type"])

    def test_hostile_names_cannot_move_the_cursor(self):
        path = self.file("esc.gguf", tiny_gguf.write({"general.architecture": "a\x1b[2Jb", "x.\x1b[31m": "v\x1b[0m\x07"}, []))
        r = self.good("inspect", path)
        self.assertNotIn(b"\x1b", r.err)
        j = self.good_json("inspect", path)
        self.assertEqual(j["arch"], "a\x1b[2Jb")


if __name__ == "__main__":
    main()
