"""test_quantize.py - quantize: the plan and the file, what is refused, Ctrl-C, running what was made.

SPDX-License-Identifier: MIT
"""
import os
import resource
import signal
import struct
import subprocess
import time

import tiny_gguf
from cli_case import CLI, MODEL, ZOO, ZOO_V3, CliCase, fewer, main, read, run

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
         "IQ4_XS", "Q4_K_M", "Q5_K_M"]
ZOO_512 = os.path.join(ZOO, "zoo-glm5-512.gguf")


class Quantize(CliCase):
    def setUp(self):
        super().setUp()
        self.out = os.path.join(self.tmp, "out.gguf")

    def test_json_and_file_agree(self):
        j = self.good_json("quantize", ZOO_512, self.out, "q4_k_m")
        self.assertEqual((j["in"], j["out"], j["type"], j["written"]), (ZOO_512, self.out, "Q4_K_M", True))
        self.assertEqual(j["bytes_before"], os.path.getsize(ZOO_512))
        self.assertEqual(j["bytes_after"], os.path.getsize(self.out))
        self.assertLess(j["bytes_after"], j["bytes_before"] / 2)
        self.assertEqual(j["requantized"], 0)
        self.assertGreater(j["seconds"], 0)
        before, after = (self.good_json("inspect", path) for path in (ZOO_512, self.out))
        for source, t, made in zip(before["tensors"], j["tensors"], after["tensors"]):
            self.assertEqual((t["name"], t["from"], t["bytes_before"]), (source["name"], source["type"], source["bytes"]))
            self.assertEqual((t["name"], t["to"], t["bytes_after"]), (made["name"], made["type"], made["bytes"]))
            self.assertEqual(source["shape"], made["shape"])
        self.assertEqual(len(before["tensors"]), len(after["tensors"]))
        self.assertEqual(len(j["tensors"]), len(after["tensors"]))
        self.assertEqual({t["why"] for t in j["tensors"]}, {"asked", "raised", "fallback", "kept"})
        kv = dict(before["kv"], **{"general.file_type": 15, "general.quantization_version": 2})
        self.assertEqual(after["kv"], kv)
        self.assertIsNone(after["cannot_run"])

    def test_every_type_runs(self):
        """What was made opens, computes finite numbers, and only differs from its source as its precision allows."""
        # Under sanitizers every type once and the mix of a wide model: the encoders run there in the unit tests too.
        models = fewer(("zoo-v3", "zoo-glm5-512", "zoo-v2lite", "zoo-v32"), ("zoo-v3", "zoo-glm5-512"))
        for model in models:
            kinds = TYPES if model == "zoo-v3" else fewer(TYPES, ["Q4_K_M"])
            source = f"{ZOO}/{model}.gguf"
            for kind in kinds:
                with self.subTest(model=model, type=kind):
                    self.good("quantize", source, self.out, kind)
                    args = ("verify", "-m", self.out, "--golden", f"{ZOO}/{model}.golden.gguf", "-s", "kv.dtype=f32", "--json")
                    r = run(*args, "--max-abs", "5e-4" if kind in ("F32", "BF16") else "1e3")
                    self.assertEqual(r.rc in (0, 1), True, r)
                    j = r.json()
                    self.assertLess(j["max_abs"], 5e-4 if kind in ("F32", "BF16") else 1e3, r)  # false for NaN

    def test_every_zoo_model(self):
        names = [n for n in sorted(os.listdir(ZOO)) if n.endswith(".gguf") and ".golden." not in n]
        for name in fewer(names, [n for n in names if os.path.getsize(f"{ZOO}/{n}") < 1 << 20]):
            self.good("quantize", f"{ZOO}/{name}", self.out, "Q4_K_M")
            self.good("run", "-m", self.out, "-p", "ab", "-n", "2", "--temp", "0", "--ignore-eos")

    def test_same_bytes_for_any_number_of_threads(self):
        made = set()
        for threads in fewer(("1", "2", "3", "8"), ("1", "3")):
            self.good("quantize", ZOO_512, self.out, "Q5_K_M", "-s", f"engine.threads={threads}")
            made.add(read(self.out))
        self.assertEqual(len(made), 1)

    def test_dry_run_writes_nothing(self):
        j = self.good_json("quantize", ZOO_V3, self.out, "Q8_0", "--dry-run")
        self.assertEqual((j["written"], j["seconds"]), (False, None))
        text = self.good("quantize", ZOO_V3, self.out, "Q8_0", "--dry-run").out
        self.assertIn(b"nothing written", text)
        for t in j["tensors"]:
            self.assertIn(t["name"].encode(), text)
        self.assertEqual(os.listdir(self.tmp), [])
        self.good("quantize", ZOO_V3, self.out, "Q8_0")
        self.assertEqual(os.path.getsize(self.out), j["bytes_after"])

    def test_lists_tensors_only_when_asked(self):
        self.assertNotIn(b"token_embd", self.good("quantize", ZOO_V3, self.out, "Q8_0").out)
        self.assertIn(b"token_embd", self.good("quantize", ZOO_V3, self.out, "Q8_0", "-t").out)

    def test_a_quantized_source_is_noted(self):
        r = self.good("quantize", MODEL, self.out, "Q8_0", "--json")
        self.assertIn(b"quantized already", r.err)
        self.assertGreater(r.json()["requantized"], 0)
        self.assertNotIn(b"quantized already", self.good("quantize", ZOO_V3, self.out, "Q8_0").err)
        self.assertEqual(self.good_json("quantize", MODEL, self.out, "F32", "--dry-run")["requantized"], 0)

    def test_replaces_unless_told_not_to(self):
        with open(self.out, "w", encoding="ascii") as f:
            f.write("old")
        self.refused("quantize", ZOO_V3, self.out, "Q8_0", "--no-replace", says="exists already", code="E_ARG")
        self.assertEqual(read(self.out), b"old")
        self.good("quantize", ZOO_V3, self.out, "Q8_0")
        self.assertEqual(read(self.out)[:4], b"GGUF")
        self.assertEqual(os.listdir(self.tmp), ["out.gguf"])

    def test_usage(self):
        self.refused("quantize", says=("IN OUT TYPE", "Q4_K_M"), code="E_ARG")
        self.refused("quantize", ZOO_V3, self.out, says="IN OUT TYPE")
        self.refused("quantize", ZOO_V3, self.out, "Q9_0", says=("'Q9_0'", "IQ4_XS, Q4_K_M, Q5_K_M"), code="E_ARG")
        self.refused("quantize", ZOO_V3, self.out, "Q8_0", "more", says="one argument too many")
        self.refused("quantize", "-m", ZOO_V3, ZOO_V3, self.out, "Q8_0", says="first argument")
        self.assertEqual(os.listdir(self.tmp), [])

    def test_bad_sources(self):
        self.refused("quantize", self.tmp + "/none.gguf", self.out, "Q8_0", says="none.gguf", code="E_IO")
        self.refused("quantize", self.tmp, self.out, "Q8_0", says="directory", code="E_IO")
        path = self.file("cut.gguf", read(ZOO_V3)[:-100])
        self.refused("quantize", path, self.out, "Q8_0", says="incomplete", code="E_FORMAT")
        self.assertEqual(os.listdir(self.tmp), ["cut.gguf"])

    def test_bad_targets(self):
        source = self.file("in.gguf", read(ZOO_V3))
        os.link(source, self.tmp + "/hard.gguf")
        os.symlink("in.gguf", self.tmp + "/soft.gguf")
        for name in ("in.gguf", "hard.gguf", "soft.gguf", "./in.gguf"):
            self.refused("quantize", source, f"{self.tmp}/{name}", "Q8_0", says="name of its own", code="E_ARG")
        self.assertEqual(read(source), read(ZOO_V3))
        self.refused("quantize", source, self.tmp, "Q8_0", says="directory", code="E_IO")
        self.refused("quantize", source, "/dev/full", "Q8_0", says="device", code="E_IO")
        self.refused("quantize", source, self.tmp + "/no/out.gguf", "Q8_0", says="No such file", code="E_IO")
        self.assertEqual(sorted(os.listdir(self.tmp)), ["hard.gguf", "in.gguf", "soft.gguf"])

    def test_no_room(self):
        """A limit on file sizes gives what a full disk gives."""
        limit = os.path.getsize(ZOO_V3) // 4
        done = subprocess.run([CLI, "quantize", ZOO_V3, self.out, "Q8_0"], capture_output=True, check=False, timeout=60,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertEqual((done.returncode, done.stdout), (2, b""), done)
        self.assertEqual(done.stderr.count(b"\n"), 1, done)
        self.assertIn(b"there is no room for the", done.stderr)
        self.assertEqual(os.listdir(self.tmp), [])

    def test_larger_than_the_disk(self):
        """8 TiB of holes become 16: refused at once, and the disk is not filled to find out."""
        shape = [1 << 20, 1 << 22]
        source = self.file("holes.gguf", tiny_gguf.write({"general.architecture": "test"},
                                                         [("blk.0.ffn_up.weight", shape, tiny_gguf.BF16, b"")]))
        try:
            os.truncate(source, os.path.getsize(source) + 2 * shape[0] * shape[1])
        except OSError as error:
            self.skipTest(f"the file system takes no file of 8 TiB ({error})")
        disk = os.statvfs(self.tmp)
        if disk.f_blocks == 0 or disk.f_bavail * disk.f_frsize >= 4 * shape[0] * shape[1]:
            self.skipTest("the file system has room for 16 TiB, or does not tell")
        start = time.monotonic()
        self.refused("quantize", source, self.out, "F32", says=("there is no room for the 17592186044", "No space left"),
                     code="E_IO")
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual(os.listdir(self.tmp), ["holes.gguf"])

    def test_nan_in_a_weight(self):
        data = bytearray(read(ZOO_V3))
        dims, _, at, _ = tiny_gguf.Reader(bytes(data)).tensors["blk.1.attn_output.weight"]
        struct.pack_into("<H", data, at + 2 * (3 * dims[0] + 5), 0x7fc0)  # a quiet NaN in BF16
        self.refused("quantize", self.file("nan.gguf", bytes(data)), self.out, "Q8_0",
                     says=("blk.1.attn_output.weight", "NaN", "row 3, column 5"), code="E_NUMERIC")
        self.assertEqual(os.listdir(self.tmp), ["nan.gguf"])

    def interrupted(self, sig):
        """32 Mi values as IQ4_XS take seconds on any machine."""
        rows = 1 << 14
        source = os.path.join(self.tmp, "large.gguf")
        head = tiny_gguf.write({"general.architecture": "test"}, [("blk.0.ffn_up.weight", [2048, rows], tiny_gguf.BF16, b"")])
        with open(source, "wb") as f:
            f.write(head)
            row = b"".join(struct.pack("<H", 0x3c00 + i * 37 % 800) for i in range(2048))
            f.write(row * rows)
        p = subprocess.Popen([CLI, "quantize", source, self.out, "IQ4_XS", "-s", "engine.threads=1"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
        until = time.monotonic() + 60
        while len(os.listdir(self.tmp)) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        self.assertEqual(len(os.listdir(self.tmp)), 2)  # the source and the temporary file
        p.send_signal(sig)
        out, err = p.communicate(timeout=60)
        self.assertEqual((p.returncode, out), (3, b""), err)
        self.assertIn(b"stopped on request; nothing was written\n", err)
        self.assertEqual(os.listdir(self.tmp), ["large.gguf"])

    def test_ctrl_c_leaves_nothing(self):
        self.interrupted(signal.SIGINT)

    def test_being_ended_leaves_nothing(self):
        self.interrupted(signal.SIGTERM)


if __name__ == "__main__":
    main()
