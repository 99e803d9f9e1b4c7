"""test_run.py - run: tokens, text, streams, stops, chunks, sampling, Ctrl-C, chat.

SPDX-License-Identifier: MIT
"""
import json
import os
import pty
import select
import signal
import subprocess
import time

import tiny_gguf
from cli_case import CLI, MODEL, SANITIZED, SOURCE, ZOO_V3, CliCase, main, read, run

COUNT = "1 2 3 4 5 6 7 8 9 10"


class Run(CliCase):
    def test_json_fields(self):
        j = self.good_json("run", "-m", MODEL, "-p", COUNT, "-n", "6", "--temp", "0", "--logprobs", "3")
        self.assertEqual(set(j), {"prompt_ids", "tokens", "text", "stop", "timing", "backends", "seed"})
        self.assertEqual(j["prompt_ids"], self.good_json("tokenize", "-m", MODEL, "-p", COUNT)["ids"])
        self.assertEqual((j["text"], j["stop"], len(j["tokens"])), (" 11 12 ", "length", 6))
        self.assertEqual("".join(t["text"] for t in j["tokens"]), j["text"])
        for t in j["tokens"]:
            self.assertEqual(len(t["top"]), 3)
            self.assertEqual((t["top"][0]["id"], t["top"][0]["text"]), (t["id"], t["text"]))
            self.assertAlmostEqual(t["top"][0]["logprob"], t["logprob"], delta=1e-5)
            self.assertLessEqual(t["logprob"], 0)
            order = [x["logprob"] for x in t["top"]]
            self.assertEqual(order, sorted(order, reverse=True))
        self.assertGreater(j["timing"]["load_ms"], 0)
        self.assertGreater(j["timing"]["prefill_tok_s"], 0)
        self.assertGreater(j["timing"]["decode_tok_s"], 0)
        slots = {s["slot"] for s in j["backends"]["slots"]}
        self.assertLessEqual({"quant", "moe", "mla.prefill", "mla.decode", "mla.common", "dense"}, slots)
        self.assertTrue(j["backends"]["kv"]["dtype"] and j["backends"]["kv"]["layout"])

    def test_golden_continuation(self):
        """The bundled quantized model counts like the one that the golden values were made from."""
        golden = tiny_gguf.read(os.path.join(SOURCE, "tests", "data", "golden", "bp-tiny-glm-dsa.golden.gguf"))
        at = golden.tensors["3.greedy"][2]
        want = [int.from_bytes(golden.data[at + 4 * i:at + 4 * i + 4], "little") for i in range(16)]
        j = self.good_json("run", "-m", MODEL, "--chat", "-p", "Count from 3 to 12.", "-n", "16", "--temp", "0")
        self.assertEqual([t["id"] for t in j["tokens"]][:16], want)

    def test_text_goes_to_stdout_and_nothing_else(self):
        r = self.good("run", "-m", MODEL, "-p", COUNT, "-n", "6", "--temp", "0")
        self.assertEqual((r.out, r.err), (b" 11 12 \n", b""), r)
        v = self.good("run", "-m", MODEL, "-p", COUNT, "-n", "6", "--temp", "0", "-v")
        self.assertEqual(v.out, r.out)
        self.assertIn(b"stop: length", v.err)
        self.assertIn(b"backend: ", v.err)
        p = self.good("run", "-m", MODEL, "-p", COUNT, "-n", "2", "--temp", "0", "--logprobs", "2")
        self.assertEqual(p.out, b" 11\n")
        self.assertEqual(len(p.err.splitlines()), 2)

    def test_every_profile_runs_the_bundled_model(self):
        folder = os.path.join(SOURCE, "etc", "profiles")
        profiles = sorted(p for p in os.listdir(folder) if p.endswith(".ini"))
        complete = [p for p in profiles if b"\ndevice = cuda" not in read(os.path.join(folder, p))]
        self.assertIn("cpu.ini", complete)  # test_explain.py has those that want a GPU
        for profile in complete:
            r = self.good("run", "-m", MODEL, "-c", os.path.join(folder, profile), "-p", COUNT, "-n", "2",
                          "--temp", "0")
            self.assertEqual(r.out, b" 11\n", (profile, r))

    def test_one_token_has_no_decode_speed(self):
        j = self.good_json("run", "-m", MODEL, "-p", COUNT, "-n", "1", "--temp", "0")
        self.assertEqual(len(j["tokens"]), 1)
        self.assertIsNone(j["timing"]["decode_tok_s"])

    def test_stops(self):
        j = self.good_json("run", "-m", MODEL, "--chat", "-p", "Count from 3 to 6.", "--temp", "0", "-n", "60")
        self.assertEqual((j["stop"], j["text"], j["tokens"][-1]["text"]), ("eog", "3 4 5 6", ""))
        more = self.good_json("run", "-m", MODEL, "--chat", "-p", "Count from 3 to 6.", "--temp", "0", "-n", "30",
                              "--ignore-eos")
        self.assertEqual((more["stop"], len(more["tokens"])), ("length", 30))
        n = len(j["tokens"])
        self.assertEqual([t["id"] for t in more["tokens"]][:n], [t["id"] for t in j["tokens"]])
        full = self.good_json("run", "-m", MODEL, "-p", COUNT, "--temp", "0", "--ignore-eos", "-s", "engine.ctx=24")
        self.assertEqual(full["stop"], "context")
        self.assertEqual(len(full["prompt_ids"]) + len(full["tokens"]) - 1, 24)
        r = self.good("run", "-m", MODEL, "-p", COUNT, "--temp", "0", "--ignore-eos", "-s", "engine.ctx=24")
        self.assertIn(b"the context of 24 tokens is full", r.err)

    def test_prompt_and_context(self):
        n = len(self.good_json("tokenize", "-m", MODEL, "-p", COUNT)["ids"])
        self.refused("run", "-m", MODEL, "-p", COUNT, "-s", f"engine.ctx={n - 1}",
                     says=(f"{n} tokens", f"only {n - 1}"), code="E_LIMIT")
        j = self.good_json("run", "-m", MODEL, "-p", COUNT, "--temp", "0", "-s", f"engine.ctx={n}")
        self.assertEqual((j["stop"], len(j["tokens"])), ("context", 1))
        self.refused("run", "-m", MODEL, "-p", COUNT * 2000, says="context", code="E_LIMIT")

    def test_chunks_do_not_change_the_answer(self):
        text = read(os.path.join(SOURCE, "tests", "data", "text", "stories-heldout.txt"))
        text = text[:300 if SANITIZED else 500].decode("utf-8", "ignore")  # more than 7 tokens, and more than 64
        args = ("run", "-m", MODEL, "-p", text, "-n", "6", "--temp", "0")
        want = self.good_json(*args)["tokens"]
        for k in ("1", "7", "64", "600"):
            self.assertEqual(self.good_json(*args, "--batch-chunk", k)["tokens"], want, k)
        self.refused(*args, "--batch-chunk", "600", "-s", "engine.batch_tokens=64", says="engine.batch_tokens")

    def test_seed(self):
        args = ("run", "-m", MODEL, "-p", "Once upon a time", "-n", "20", "--temp", "1.5", "--top-k", "0")
        a = self.good_json(*args, "--seed", "5")
        self.assertEqual(a["seed"], 5)
        self.assertEqual(self.good_json(*args, "--seed", "5")["tokens"], a["tokens"])
        self.assertNotEqual(self.good_json(*args, "--seed", "6")["tokens"], a["tokens"])
        fresh = self.good_json(*args)
        self.assertEqual(self.good_json(*args, "--seed", str(fresh["seed"]))["tokens"], fresh["tokens"])
        self.assertNotEqual(self.good_json(*args)["seed"], fresh["seed"])
        same = self.good_json(*args, "-s", "sample.seed=5")
        self.assertEqual(same["tokens"], a["tokens"])

    def test_top_k_1_is_greedy_and_filters_act(self):
        args = ("run", "-m", MODEL, "-p", "Once upon a time", "-n", "12")
        greedy = self.good_json(*args, "--temp", "0")["text"]
        self.assertEqual(self.good_json(*args, "--temp", "9", "--top-k", "1")["text"], greedy)
        self.assertEqual(self.good_json(*args, "--temp", "9", "--top-p", "0")["text"], greedy)
        self.assertEqual(self.good_json(*args, "--temp", "9", "--min-p", "1")["text"], greedy)
        few = self.good_json(*args, "--temp", "9", "--top-k", "3", "--logprobs", "3", "--seed", "1")["tokens"]
        for t in few:
            self.assertIn(t["id"], [x["id"] for x in t["top"]])
        self.assertNotEqual([t["id"] for t in few], [t["top"][0]["id"] for t in few])

    def test_repeat_penalty(self):
        args = ("run", "-m", ZOO_V3, "-p", "abcabcabc", "-n", "40", "--temp", "0")
        plain = [t["id"] for t in self.good_json(*args)["tokens"]]
        heavy = [t["id"] for t in self.good_json(*args, "--repeat-penalty", "50")["tokens"]]
        self.assertGreater(len(set(heavy)), len(set(plain)))

    def test_partial_characters(self):
        j = self.good_json("run", "-m", ZOO_V3, "-p", "abc", "-n", "60", "--temp", "0", "--ignore-eos")
        raw = b"".join(bytes(t["bytes"]) if "bytes" in t else t["text"].encode() for t in j["tokens"])
        self.assertTrue(any("bytes" in t for t in j["tokens"]))
        self.assertEqual(raw.decode("utf-8", "replace"), j["text"])
        r = self.good("run", "-m", ZOO_V3, "-p", "abc", "-n", "60", "--temp", "0", "--ignore-eos")
        self.assertEqual(r.out, raw + b"\n")

    def test_special_tokens_in_prompts(self):
        plain = self.good_json("run", "-m", MODEL, "-p", "<|user|>hi", "-n", "1")
        special = self.good_json("run", "-m", MODEL, "-p", "<|user|>hi", "-n", "1", "--special")
        chat = self.good_json("run", "-m", MODEL, "-p", "<|user|>hi", "-n", "1", "--chat", "--system", "s<|user|>")
        self.assertEqual((plain["prompt_ids"].count(4093), special["prompt_ids"].count(4093)), (0, 1))
        self.assertEqual(chat["prompt_ids"].count(4093), 1)

    def test_unknown_backend(self):
        self.refused("run", "-m", MODEL, "-p", "x", "-s", "slots.moe=fast", says="fast", code="E_CONFIG")

    def test_chat_needs_a_known_format(self):
        self.refused("run", "-m", ZOO_V3, "-p", "x", "--chat", says="chat template", code="E_UNSUPPORTED")
        self.refused("run", "-m", ZOO_V3, "-i", says="chat template")


class CtrlC(CliCase):
    def start(self, *extra):
        return subprocess.Popen([CLI, "run", "-m", MODEL, "-p", COUNT, "-n", "100000", "--ignore-eos", "--temp", "0",
                                 "-s", "engine.ctx=2048", *extra], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def test_stops_with_what_there_is(self):
        p = self.start()
        first = p.stdout.read(6)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=60)
        self.assertEqual(p.returncode, 0, err)
        self.assertTrue((first + out).startswith(b" 11 12"), out)
        self.assertTrue(out.endswith(b"\n"))
        self.assertIn(b"stopped by Ctrl-C after", err)

    def test_json_is_whole(self):
        p = self.start("--json", "-v")
        while b"memory:" not in p.stderr.readline():
            self.assertIsNone(p.poll())
        time.sleep(2.0)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=60)
        self.assertEqual(p.returncode, 0, err)
        j = json.loads(out)
        self.assertEqual(j["stop"], "interrupted")
        self.assertGreater(len(j["tokens"]), 0)

    def test_while_reading_the_prompt(self):
        text = self.file("long.txt", COUNT.encode() * 95)
        p = subprocess.Popen([CLI, "run", "-m", MODEL, "-f", text, "-s", "engine.ctx=2048", "-v"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while b"memory:" not in p.stderr.readline():  # the last line before the prompt is computed
            self.assertIsNone(p.poll())
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=60)
        self.assertEqual((p.returncode, out), (0, b""), err)
        self.assertIn(b"stopped by Ctrl-C after 0 tokens", err)

    def test_other_commands_fail_cleanly(self):
        p = subprocess.Popen([CLI, "ppl", "-m", MODEL, "-f", os.path.join(SOURCE, "tests/data/text/stories-heldout.txt"),
                              "-v"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while b"chunk 1 of" not in p.stderr.readline():
            self.assertIsNone(p.poll())
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=60)
        self.assertEqual((p.returncode, out), (3, b""), err)
        self.assertIn(b"stopped on request", err)


class Chat(CliCase):
    def chat(self, *lines, extra=()):
        r = run("run", "-m", MODEL, "-i", "--temp", "0", "-n", "40", *extra, stdin="".join(lines).encode())
        self.assertEqual(r.rc, 0, r)
        return r

    def test_scripted(self):
        r = self.chat("Count from 3 to 8.\n", "\n", "/reset\n", "Count from 5 to 9.")
        self.assertEqual((r.out, r.err), (b"3 4 5 6 7 8\n5 6 7 8 9\n", b""))

    def test_first_message_from_the_option(self):
        self.assertEqual(self.chat(extra=("-p", "Count from 3 to 8.")).out, b"3 4 5 6 7 8\n")

    def test_the_conversation_is_kept_in_one_sequence(self):
        """The second turn feeds only what is new, and answers like the whole conversation computed at once."""
        r = self.chat("Count from 3 to 8.\n", "Count from 5 to 9.\n", extra=("-v",))
        stats = [line for line in r.err.decode().splitlines() if line.startswith("prompt ")]
        self.assertEqual(len(stats), 2)
        first, second = (int(line.split()[1]) for line in stats)
        self.assertLess(second, first + 12 + 2)
        ids = [4088, 4090]
        text = "[gMASK]<sop><|user|>Count from 3 to 8.<|assistant|>3 4 5 6 7 8<|user|>Count from 5 to 9.<|assistant|>"
        whole = self.good_json("run", "-m", MODEL, "-p", text, "--special", "--temp", "0", "-n", "40")
        self.assertEqual(whole["prompt_ids"][:2], ids)
        self.assertEqual(r.out.decode().split("\n")[1], whole["text"])

    def test_full_context_is_said_and_survived(self):
        r = self.chat("Count from 3 to 8.\n", "x " * 200 + "\n", "/reset\n", "Count from 5 to 9.\n",
                      extra=("-s", "engine.ctx=40"))
        self.assertIn(b"/reset starts over", r.err)
        self.assertEqual(r.out, b"3 4 5 6 7 8\n5 6 7 8 9\n")

    def test_invalid_utf8(self):
        self.refused("run", "-m", MODEL, "-i", stdin=b"\xff\n", says="byte 0")

    def test_endless_line(self):
        self.refused("run", "-m", MODEL, "-i", stdin=b"x" * (3 << 20), says="1 MiB")

    def test_terminal(self):
        """On a terminal: a mark for input, Ctrl-C stops the answer, Ctrl-D ends."""
        leader, follower = pty.openpty()
        p = subprocess.Popen([CLI, "run", "-m", MODEL, "-i", "--temp", "0", "-n", "100000", "--ignore-eos", "-s",
                              "engine.ctx=2048"], stdin=follower, stdout=follower, stderr=follower,
                             start_new_session=True)
        os.close(follower)
        self.addCleanup(p.kill)
        seen = b""

        def until(word, timeout=60):
            nonlocal seen
            end = time.time() + timeout
            while word not in seen:
                ready, _, _ = select.select([leader], [], [], max(0, end - time.time()))
                self.assertTrue(ready, (word, seen[-300:]))
                seen += os.read(leader, 4096)
            seen = seen[seen.index(word) + len(word):]
        until(b"> ")
        os.write(leader, b"Count from 3 to 8.\n")
        until(b"3 4 5 6 7 8")
        p.send_signal(signal.SIGINT)
        until(b"> ")
        p.send_signal(signal.SIGINT)
        until(b"Ctrl-D ends the chat")
        until(b"> ")
        os.write(leader, b"/reset\n")
        until(b"> ")
        os.write(leader, b"\x04")
        self.assertEqual(p.wait(timeout=60), 0)
        os.close(leader)


if __name__ == "__main__":
    main()
