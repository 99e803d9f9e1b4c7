"""test_commands.py - the commands in the documentation do what the documentation says.

Each page's blocks marked `sh test` run in order, in one shell, as a reader would type them: in a folder that looks like
the repository (links to it, but for build/release, which is the build under test), with an empty home of its own. The
shell stops at the first command that fails. After each block its exit status is compared, and what it wrote to either
stream with the block `text output` below it.
BP_SOURCE, BP_BUILD and the tools are set by CMake. SPDX-License-Identifier: MIT
"""
import os
import shlex
import subprocess
import sys
import tempfile
import unittest

import doc_pages

ENV = {name: os.environ.get(name, "") for name in ("BP_SOURCE", "BP_BUILD", "BP_CMAKE", "BP_CC")}
# Of these pages at least so many blocks are run: marks that are lost must not go unnoticed.
LEAST = {"README.md": 2, "docs/plugin-guide.md": 10, "docs/ab.md": 7}

# Pages keep options with paths in shell variables, so they run where paths hold no spaces.
PLAIN_TEMP = "/tmp" if " " in tempfile.gettempdir() else None


class Failure(Exception):
    pass


def script_of(blocks, out):
    """One script for all blocks: each in the same shell, its output and status in files of their own. A block is a group,
    so that variables and the folder carry over; the status is that of its last command, and set -e stops before."""
    parts = ["umask 022", "trap 'echo $? >\"$bp_status\"' EXIT", ""]  # files that others can write are no plugins
    out = shlex.quote(out)
    for i, block in enumerate(blocks):
        wanted = int(block.option("exit", "0"))
        *first, last = joined(block.lines)
        body = "\n".join(first)
        parts += [f"bp_status={out}/{i}.last", "set -e", "{", body, "set +e", last, "bp_rc=$?", "set -e",
                  f"}} >{out}/{i}.out 2>&1", f"echo $bp_rc >{out}/{i}.rc", f"[ $bp_rc -eq {wanted} ]", ""]
    return "\n".join(parts)


def joined(lines):
    """Commands of a block: lines that go on, by a backslash or a here-document, in one piece."""
    out, open_end, pending = [], None, []
    for line in lines:
        pending.append(line)
        if open_end is not None:
            if line.strip() == open_end:
                open_end = None
                out.append("\n".join(pending))
                pending = []
            continue
        if "<<" in line:
            open_end = line.split("<<")[1].split()[0].strip("'\"-")
        elif not line.endswith("\\") and line.strip():
            out.append("\n".join(pending))
            pending = []
    if pending and any(p.strip() for p in pending):
        raise Failure("the block ends in the middle of a command")
    return out


def pairs(text):
    """(block to run, the output block right below it or None)."""
    blocks = doc_pages.split(text)[0]
    for i, block in enumerate(blocks):
        if block.is_test():
            yield block, blocks[i + 1] if i + 1 < len(blocks) and blocks[i + 1].is_output() else None


def check_page(page, text, folder, env):
    """Runs the page; raises Failure with line, wanted and got. Returns the number of blocks."""
    steps = list(pairs(text))
    out = os.path.join(folder, "out")
    os.mkdir(out)
    script = script_of([b for b, _ in steps], out)
    done = subprocess.run(["/bin/sh", "-c", script], cwd=os.path.join(folder, "repository"), env=env, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=1200)
    for i, (block, output) in enumerate(steps):
        where = f"{page}:{block.line}"
        got_file = os.path.join(out, f"{i}.out")
        got = doc_pages.read(got_file) if os.path.exists(got_file) else ""
        if not os.path.exists(os.path.join(out, f"{i}.rc")):
            raise Failure(f"{where}: a command failed:\n{got[-3000:]}{done.stderr[-2000:]}")
        rc, wanted = int(doc_pages.read(os.path.join(out, f"{i}.rc"))), int(block.option("exit", "0"))
        if rc != wanted:
            raise Failure(f"{where}: exit status {rc} instead of {wanted}:\n{got[-3000:]}")
        lost = doc_pages.expect(output.lines, got.splitlines()) if output is not None else None
        if lost is not None:
            raise Failure(f"{where}: not what was printed: {lost}\n--- printed was:\n{got[-3000:]}")
    return len(steps)


def make_home(folder):
    """A folder that looks like a fresh clone with a finished release build, and the environment of its owner."""
    repository, home = os.path.join(folder, "repository"), os.path.join(folder, "home")
    os.makedirs(os.path.join(repository, "build"), mode=0o755)
    os.mkdir(home, mode=0o755)
    for name in os.listdir(ENV["BP_SOURCE"]):
        if name != "build":
            os.symlink(os.path.join(ENV["BP_SOURCE"], name), os.path.join(repository, name))
    os.symlink(ENV["BP_BUILD"], os.path.join(repository, "build", "release"))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "BP_", "CMAKE_"))}
    # A sanitized kit would report what its children leave behind, which ends in a finding about the plugin.
    env.update(HOME=home, CC=ENV["BP_CC"], LC_ALL="C.UTF-8", ASAN_OPTIONS=env.get("ASAN_OPTIONS", "") + ":detect_leaks=0",
               PATH=os.path.dirname(ENV["BP_CMAKE"]) + os.pathsep + env.get("PATH", ""))
    return env


class Commands(unittest.TestCase):
    def test_pages(self):
        n_in = {}
        for page in doc_pages.pages(ENV["BP_SOURCE"]):
            text = doc_pages.read(os.path.join(ENV["BP_SOURCE"], page))
            if not list(pairs(text)):
                continue
            with self.subTest(page=page), tempfile.TemporaryDirectory(prefix="bp-docs-", dir=PLAIN_TEMP) as folder:
                try:
                    n_in[page] = check_page(page, text, folder, make_home(folder))
                except Failure as e:
                    self.fail(str(e))
        for page, least in LEAST.items():
            with self.subTest(page=page):
                self.assertGreaterEqual(n_in.get(page, 0), least)
        print("blocks run:", n_in)

    def one(self, text):
        with tempfile.TemporaryDirectory(prefix="bp-docs-") as folder:
            os.mkdir(os.path.join(folder, "repository"))
            return check_page("page", text, folder, dict(os.environ))

    def test_good_page(self):
        text = ("```sh test\na=1; cd ..\n```\n```text output\n```\n"
                "```sh test exit=3\ncat <<'EOF'\none\ntwo $a\nEOF\necho \"a is $a\" \\\n  here; pwd >/dev/null\nsh -c 'exit 3'\n```\n"
                "```text output\n...\ntwo $a\na is ... here\n```\n```sh\nfalse\n```\n")
        self.assertEqual(self.one(text), 2)

    def test_bad_pages(self):
        """The test sees what it looks for."""
        for text, words in (("```sh test\nfalse\ntrue\n```\n", "a command failed"),
                            ("```sh test\nsh -c 'exit 4'\n```\n", "exit status 4 instead of 0"),
                            ("```sh test exit=1\ntrue\n```\n", "exit status 0 instead of 1"),
                            ("```sh test\necho b\n```\n```text output\na\n```\n", "not what was printed: a"),
                            ("```sh test\necho a; echo b\n```\n```text output\na\n```\n", "there is more"),
                            ("```sh test\necho b; echo a\n```\n```text output\na\n...\n```\n", "not what was printed: a"),
                            ("```sh test\necho a\n```\n```text output\na\n...\nb\n```\n", "not what was printed: b"),
                            ("```sh test\nexit 0\n```\n```sh test\ntrue\n```\n", "a command failed")):
            with self.subTest(text=text):
                with self.assertRaisesRegex(Failure, words):
                    self.one(text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
