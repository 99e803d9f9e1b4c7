"""test_shrink.py - a model file that is shortened while a command reads it: one sentence, exit status 3 (or 2 where a look
at the length was faster), never a death by signal.

SPDX-License-Identifier: MIT
"""
import json
import os
import shutil
import signal
import subprocess

from cli_case import CLI, MODEL, CliCase, main


class Shrink(CliCase):
    def start(self, *args):
        return subprocess.Popen([CLI, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def copy(self):
        path = os.path.join(self.tmp, "model.gguf")
        shutil.copy(MODEL, path)
        return path

    def check(self, child, out, err, path, as_json):
        self.assertIn(child.returncode, (2, 3), (out, err))
        self.assertTrue(err.startswith(b"backplane "), err)
        self.assertEqual(err.count(b"\n"), 1, err)
        self.assertIn(os.path.basename(path).encode(), err)
        self.assertTrue(b"shorter" in err or b"shortened" in err or b"changed meanwhile" in err, err)
        if as_json:
            self.assertEqual(json.loads(out)["error"]["code"], "E_IO", out)

    def shorten_while_running(self, *extra):
        path = self.copy()
        child = self.start("run", "-m", path, "-p", "1 2 3", "-n", "1500", "--ignore-eos", "-v", *extra)
        try:
            for line in child.stderr:  # what -v prints when the session stands
                if line.startswith(b"memory:"):
                    break
            os.truncate(path, 8192)
            out, err = child.communicate(timeout=120)
        finally:
            child.kill()
            child.wait()
        self.check(child, out, err, path, extra != ())
        return child.returncode, err

    def test_run(self):
        """In the middle of a step the signal is what tells; between two steps the look at the length does. Most of the
        time goes into steps, so a few tries show the signal."""
        for extra in ((), ("--json",)):
            for _ in range(20):
                rc, err = self.shorten_while_running(*extra)
                if rc == 3:
                    break
            self.assertEqual(rc, 3)
            self.assertIn(os.path.join(self.tmp, "model.gguf").encode() + b": the file became shorter", err)

    def test_between_two_turns(self):
        """A chat waits for a line, so the file is shortened while nothing runs."""
        path = self.copy()
        child = self.start("run", "-m", path, "-i", "-n", "4", "-v")
        try:
            for line in child.stderr:
                if line.startswith(b"memory:"):
                    break
            os.truncate(path, 4096)
            out, err = child.communicate(b"hello\n", timeout=120)
        finally:
            child.kill()
            child.wait()
        self.assertIn(child.returncode, (2, 3), (out, err))
        self.assertIn(b"shorten", err)

    def test_a_signal_from_outside_keeps_its_meaning(self):
        child = self.start("run", "-m", MODEL, "-p", "1 2 3", "-n", "1500", "--ignore-eos", "-v")
        try:
            for line in child.stderr:
                if line.startswith(b"memory:"):
                    break
            child.send_signal(signal.SIGBUS)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
            child.wait()
        self.assertEqual(child.returncode, -signal.SIGBUS, (out, err))
        self.assertNotIn(b"became shorter", err)


if __name__ == "__main__":
    main()
