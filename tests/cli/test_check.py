"""test_check.py - inspect --hash, --check, --validate, and the totals by type.

SPDX-License-Identifier: MIT
"""
import ctypes
import ctypes.util
import os
import shutil
import signal
import struct
import subprocess
import time

import tiny_gguf
from cli_case import CLI, MODEL, ZOO_V3, CliCase, main, read


def xxh3_128(data):
    """One call of the library over the whole, as text."""
    class Hash(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]
    lib = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
    lib.XXH3_128bits.restype, lib.XXH3_128bits.argtypes = Hash, [ctypes.c_char_p, ctypes.c_size_t]
    h = lib.XXH3_128bits(data, len(data))
    return f"{h.high:016x}{h.low:016x}"


def small_shards(folder, names=("a b", "c", "d%")):
    """A model in three files; each holds one tensor of 64 F32. Returns the paths."""
    paths = []
    for i, name in enumerate(names):
        raw = struct.pack("<64f", *[i + k for k in range(64)])
        kv = {"general.architecture": "test", "split.no": i, "split.count": 3, "split.tensors.count": 3}
        paths.append(os.path.join(folder, f"my set-{i + 1:05d}-of-00003.gguf"))
        with open(paths[-1], "wb") as f:
            f.write(tiny_gguf.write(kv, [(name, [64], tiny_gguf.F32, raw)]))
    return paths


class Manifest(CliCase):
    def manifest(self, path, name="m.hash"):
        return self.file(name, self.good("inspect", path, "--hash").out)

    def test_hashes_are_those_of_the_bytes(self):
        data, want = read(ZOO_V3), tiny_gguf.read(ZOO_V3)
        j = self.good_json("inspect", ZOO_V3, "--hash")
        self.assertEqual((j["algorithm"], j["file"], j["bytes"]), ("xxh3-128", "zoo-v3.gguf", len(data)))
        first = min(t[2] for t in want.tensors.values())
        self.assertEqual(j["headers"], [{"hash": xxh3_128(data[:first]), "bytes": first, "shard": "zoo-v3.gguf"}])
        self.assertEqual([t["name"] for t in j["tensors"]], list(want.tensors))
        for t in j["tensors"]:
            at = want.tensors[t["name"]][2]
            self.assertEqual(t["hash"], xxh3_128(data[at:at + t["bytes"]]), t)

    def test_text_and_threads(self):
        text = self.good("inspect", MODEL, "--hash", "-s", "engine.threads=1").out
        self.assertEqual(self.good("inspect", "-m", MODEL, "--hash", "-s", "engine.threads=3").out, text)
        lines, j = text.decode().splitlines(), self.good_json("inspect", MODEL, "--hash")
        size = os.path.getsize(MODEL)
        self.assertEqual(lines[0], f"backplane-manifest 1 xxh3-128 {os.path.basename(MODEL)} shards 1 "
                                   f"tensors {len(j['tensors'])} bytes {size}")
        self.assertEqual(lines[1].split(" ")[1:], ["header", str(j["headers"][0]["bytes"]), os.path.basename(MODEL), "-"])
        self.assertEqual([line.split(" ") for line in lines[2:]],
                         [[t["hash"], t["type"], str(t["bytes"]), t["shard"], t["name"]] for t in j["tensors"]])

    def test_whole(self):
        m = self.manifest(ZOO_V3)
        r = self.good("inspect", ZOO_V3, "--check", m)
        self.assertIn(b"what the manifest says", r.out)
        copy = os.path.join(self.tmp, "renamed.gguf")
        shutil.copy(ZOO_V3, copy)
        j = self.good_json("inspect", copy, "--check", m)
        self.assertTrue(j["ok"])
        self.assertEqual([j[k] for k in ("headers", "damaged", "missing", "additional")], [[]] * 4)

    def test_damage_is_named(self):
        m, data, at = self.manifest(ZOO_V3), bytearray(read(ZOO_V3)), tiny_gguf.read(ZOO_V3).tensors
        hurt = ("blk.0.attn_output.weight", "blk.2.ffn_up_exps.weight")
        for name in hurt:
            data[at[name][2] + 5] ^= 0x10
        path = self.file("hurt.gguf", bytes(data))
        j = self.refused_json(path, m)
        self.assertEqual(sorted(d["name"] for d in j["damaged"]), sorted(hurt))
        self.assertEqual((j["missing"], j["additional"], j["headers"]), ([], [], []))
        self.assertEqual({d["shard"] for d in j["damaged"]}, {"hurt.gguf"})
        text = subprocess.run([CLI, "inspect", path, "--check", m], capture_output=True, check=False)
        self.assertEqual((text.returncode, text.stderr), (1, b""))
        for name in hurt:
            self.assertRegex(text.stdout.decode(), rf"(?m)^damaged +{name} \(hurt.gguf\): its bytes differ")
        self.assertIn(b"2 damaged, 0 missing, 0 additional", text.stdout)

    def refused_json(self, path, manifest):
        done = subprocess.run([CLI, "inspect", path, "--check", manifest, "--json"], capture_output=True, check=False)
        self.assertEqual(done.returncode, 1, done)
        from json import loads
        j = loads(done.stdout)
        self.assertIs(j["ok"], False)
        return j

    def test_missing_additional_and_metadata(self):
        m = self.manifest(ZOO_V3)
        data = read(ZOO_V3)
        j = self.refused_json(self.file("a.gguf", data.replace(b"blk.2.attn_q_b.weight", b"blk.2.attn_q_x.weight", 1)), m)
        self.assertEqual([d["name"] for d in j["missing"]], ["blk.2.attn_q_b.weight"])
        self.assertEqual(j["missing"][0]["shard"], "zoo-v3.gguf")
        self.assertEqual([d["name"] for d in j["additional"]], ["blk.2.attn_q_x.weight"])
        self.assertEqual(len(j["headers"]), 1)
        j = self.refused_json(self.file("b.gguf", data.replace(b"general.name", b"general.nbme", 1)), m) \
            if b"general.name" in data else None
        if j is not None:
            self.assertEqual((len(j["headers"]), j["damaged"], j["missing"]), (1, [], []))

    def test_shards(self):
        paths = small_shards(self.tmp)
        m = self.manifest(paths[0])
        self.assertIn(b" my%20set-00002-of-00003.gguf c\n", read(m))
        self.assertIn(b" a%20b\n", read(m))
        self.good("inspect", paths[0], "--check", m)
        data = bytearray(read(paths[2]))
        data[-1] ^= 1
        with open(paths[2], "wb") as f:
            f.write(data)
        j = self.refused_json(paths[0], m)
        self.assertEqual([(d["name"], d["shard"]) for d in j["damaged"]], [("d%", os.path.basename(paths[2]))])
        os.remove(paths[1])
        self.refused("inspect", paths[0], "--check", m, says="00002-of-00003", code="E_IO")

    def test_bad_manifests(self):
        right = read(self.manifest(ZOO_V3))
        for i, bad in enumerate((b"", b"\0" * 100, b"x" * 100000, right[:-1], right[:5000], right + b"\n", right * 2,
                                 right.replace(b" Q", b"  Q").replace(b" BF16", b"  BF16"), read(MODEL)[:100000],
                                 right.replace(b"blk.1.", b"blk.2."), right.replace(b"\n", b"\r\n"))):
            self.refused("inspect", ZOO_V3, "--check", self.file(f"bad{i}", bad), says=("line", f"bad{i}"), code="E_FORMAT")
        self.refused("inspect", ZOO_V3, "--check", self.file("next", right.replace(b"manifest 1", b"manifest 7", 1)),
                     says="version 7", code="E_UNSUPPORTED")
        self.refused("inspect", ZOO_V3, "--check", self.tmp + "/none.hash", says="none.hash", code="E_IO")
        self.refused("inspect", ZOO_V3, "--check", self.tmp, says="directory", code="E_IO")

    def test_one_question_at_a_time(self):
        self.refused("inspect", ZOO_V3, "--hash", "--validate", says="one at a time", code="E_ARG")
        self.refused("inspect", ZOO_V3, "--hash", "--check", "x", says="one at a time", code="E_ARG")
        self.refused("inspect", ZOO_V3, "--validate", "--tensors", code="E_ARG")
        self.refused("inspect", self.file("cut.gguf", read(ZOO_V3)[:-1]), "--hash", code="E_FORMAT")


class Validate(CliCase):
    def test_good(self):
        j = self.good_json("inspect", MODEL, "--validate")
        want = tiny_gguf.read(MODEL)
        self.assertEqual((j["ok"], j["findings"], j["n_bad_blocks"], j["n_bad_tensors"]), (True, [], 0, 0))
        self.assertEqual(j["n_tensors"], len(want.tensors))
        self.assertGreater(j["n_blocks"], 100000)
        self.assertIn(b"0 of ", self.good("inspect", MODEL, "--validate").out)

    def test_bad_blocks(self):
        data, tensors = bytearray(read(MODEL)), tiny_gguf.read(MODEL).tensors
        dims, kind, at, _ = tensors["token_embd.weight"]
        self.assertEqual(kind, 12)  # Q4_K, 144 bytes a block
        struct.pack_into("<H", data, at + 3 * 144, 0x7e00)
        struct.pack_into("<H", data, at + 4 * 144, 0x7e00)
        struct.pack_into("<f", data, tensors["blk.1.ffn_norm.weight"][2] + 40, float("-inf"))
        path = self.file("bad.gguf", bytes(data))
        done = subprocess.run([CLI, "inspect", path, "--validate"], capture_output=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (1, b""), done)
        self.assertEqual(done.stdout.decode().splitlines()[:2], [
            "token_embd.weight (Q4_K, bad.gguf) block 3 to 4: its scale is NaN",
            "blk.1.ffn_norm.weight (F32, bad.gguf) block 10: the value is infinite"])
        self.assertRegex(done.stdout.decode(), r"3 of \d+ blocks in 2 of 113 tensors are bad\n$")
        done = subprocess.run([CLI, "inspect", path, "--validate", "--json"], capture_output=True, check=False)
        from json import loads
        j = loads(done.stdout)
        self.assertEqual((done.returncode, j["ok"], j["n_bad_blocks"], j["n_bad_tensors"]), (1, False, 3, 2))
        self.assertEqual(j["findings"][0], {"tensor": "token_embd.weight", "shard": "bad.gguf", "type": "Q4_K", "block": 3,
                                            "blocks": 2, "reason": "its scale is NaN"})


class Totals(CliCase):
    def test_types(self):
        j = self.good_json("inspect", MODEL)
        for t in j["types"]:
            of_type = [x for x in j["tensors"] if x["type"] == t["type"]]
            self.assertEqual((t["tensors"], t["bytes"]), (len(of_type), sum(x["bytes"] for x in of_type)))
            values = 0
            for x in of_type:
                n = 1
                for d in x["shape"]:
                    n *= d
                values += n
            self.assertEqual(t["values"], values)
        self.assertEqual({t["type"] for t in j["types"]}, {x["type"] for x in j["tensors"]})
        text = self.good("inspect", MODEL).out.decode()
        for t in j["types"]:
            self.assertRegex(text, rf"(?m)^  {t['type']} +{t['tensors']} tensors +{t['values']} values +{t['bytes']} bytes$")

    def test_missing_unused_and_hf_in_the_text(self):
        path = self.file("less.gguf", read(ZOO_V3).replace(b"blk.2.attn_q_b.weight", b"blk.2.attn_q_x.weight", 1))
        text = self.good("inspect", path, "--names", "hf").out.decode()
        self.assertRegex(text, r"(?m)^missing \(1\)\n  blk.2.attn_q_b.weight ")
        self.assertRegex(text, r"(?m)^unused \(1\)\n  blk.2.attn_q_x.weight ")
        self.assertRegex(text, r"(?m)^  blk.1.attn_q_b.weight .* model.layers.1.self_attn.q_b_proj.weight$")
        self.assertRegex(text, r"(?m)^  blk.2.attn_q_x.weight .*bytes  -$")


class Stopping(CliCase):
    """A sparse file of 64 GiB takes long enough to be stopped; reading holes needs no disk and no memory."""

    def big(self):
        path = os.path.join(self.tmp, "big.gguf")
        n, each = 16, 4 << 30
        head = struct.pack("<4sIQQ", b"GGUF", 3, n, 0)
        for i in range(n):
            head += tiny_gguf.packed(f"t.{i}") + struct.pack("<IQIQ", 1, each, 24, i * each)
        with open(path, "wb") as f:
            f.write(head)
            f.truncate((len(head) + 31) // 32 * 32 + n * each)
        return path

    def test_ctrl_c(self):
        path = self.big()
        for args in (("--hash",), ("--validate", "--json")):
            child = subprocess.Popen([CLI, "inspect", path, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                line = child.stderr.readline()  # the progress line, after half a second of work
                self.assertRegex(line, rb"^(hashing|validating) \.\.\.\n$")
                with open(f"/proc/{child.pid}/status", encoding="ascii") as f:
                    status = f.read()
                rss = int(status.split("VmRSS:")[1].split()[0])
                self.assertTrue(rss < 200 * 1024, f"{rss} KiB resident")
                child.send_signal(signal.SIGINT)
                start = time.monotonic()
                out, err = child.communicate(timeout=60)
                self.assertLess(time.monotonic() - start, 30)
            finally:
                child.kill()
                child.wait()
            self.assertEqual(child.returncode, 3, (out, err))
            self.assertIn(b"stopped on request", err)
            self.assertEqual(err.count(b"\n"), 1)
            self.assertEqual(b"E_ABORTED" in out, "--json" in args)


if __name__ == "__main__":
    main()
