"""cli_case.py - what the tests of the command line share: running it, its contract on streams and exit statuses.

The program is found in BP_CLI, the repository in BP_SOURCE; both are set by CMake.
SPDX-License-Identifier: MIT
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

CLI = os.environ["BP_CLI"]
SOURCE = os.environ["BP_SOURCE"]
BUILD = os.environ.get("BP_BUILD", "")  # the build folder
SANITIZED = os.environ.get("BP_SANITIZED", "") != ""
MODEL = os.path.join(SOURCE, "models", "bp-tiny-glm-dsa-Q4_K_M.gguf")
ZOO = os.path.join(SOURCE, "tests", "data", "zoo")
ZOO_V3 = os.path.join(ZOO, "zoo-v3.gguf")
ZOO_V3_GOLDEN = os.path.join(ZOO, "zoo-v3.golden.gguf")
TEXT = os.path.join(SOURCE, "tests", "data", "text", "stories-heldout.txt")


# On a slow machine each stage that takes more than half a second says so in one line.
PROGRESS = re.compile(rb"^(opening the model|loading|reading the prompt|verifying|perplexity|quantizing|hashing|validating|comparing) \.\.\.\n", re.M)


class Result:
    def __init__(self, args, rc, out, err):
        self.args, self.rc, self.out, self.err = args, rc, out, PROGRESS.sub(b"", err)

    def __str__(self):
        return f"{self.args}\nexit {self.rc}\nstdout: {self.out[-800:]!r}\nstderr: {self.err[-800:]!r}"

    def json(self):
        """The one object on standard output."""
        value = json.loads(self.out.decode("utf-8"))
        assert isinstance(value, dict), self
        assert self.out.count(b"\n") == 1 and self.out.endswith(b"\n"), self
        return value


def fewer(cases, under_sanitizers):
    """Of cases that run the same code with other data, sanitizers need only some: the release build has them all."""
    if not SANITIZED:
        return cases
    print(f"under sanitizers {len(under_sanitizers)} of {len(cases)} cases: {under_sanitizers}", file=sys.stderr)
    return under_sanitizers


def run(*args, stdin=b"", timeout=300, cwd=None):
    done = subprocess.run([CLI, *args], input=stdin, capture_output=True, timeout=timeout, check=False, cwd=cwd)
    return Result(args, done.returncode, done.stdout, done.stderr)


def read(path):
    with open(path, "rb") as f:
        return f.read()


class CliCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = folder.name

    def file(self, name, data):
        path = os.path.join(self.tmp, name)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def good(self, *args, **kw):
        r = run(*args, **kw)
        self.assertEqual(r.rc, 0, r)
        return r

    def good_json(self, *args, **kw):
        return self.good(*args, "--json", **kw).json()

    def refused(self, *args, status=2, says=(), stdin=b"", code=None):
        """Exit status, nothing on stdout, exactly one sentence on stderr; the same as an object with --json."""
        r = run(*args, stdin=stdin)
        self.assertEqual(r.rc, status, r)
        if "--json" not in args:
            self.assertEqual(r.out, b"", r)
        self.assertEqual(r.err.count(b"\n"), 1, r)
        self.assertTrue(r.err.startswith(b"backplane"), r)
        self.assertGreater(len(r.err), 30, r)
        for word in (says,) if isinstance(says, str) else says:
            self.assertIn(word.encode(), r.err, r)
        if "-i" in args or "--json" in args:
            return r
        j = run(args[0], "--json", *args[1:], stdin=stdin)
        self.assertEqual(j.rc, status, j)
        error = j.json()["error"]
        self.assertEqual(set(error), {"code", "where", "message"}, j)
        self.assertTrue(error["message"], j)
        self.assertIn(error["message"].encode(), r.err, j)
        if code is not None:
            self.assertEqual(error["code"], code, j)
        return r


def main():
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
