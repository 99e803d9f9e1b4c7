"""test_refused.py - every message that docs/plugin-refused.md shows is the one that is printed, and every reason has one.

A block `text example=NAME` of the page must be what the case of that name prints here; the folder of plugins reads
/home/you/plugins in it. Plugins come from tests/unit/loader/plugins and from ./refused. BP_SOURCE, BP_BUILD, BP_CLI and
BP_FUSSY are set by CMake; without them the release build is taken. After a change of words `test_refused.py --write` renews
the page. SPDX-License-Identifier: MIT
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from shlex import quote

import doc_pages

SOURCE = os.environ.get("BP_SOURCE", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BUILD = os.environ.get("BP_BUILD", os.path.join(SOURCE, "build", "release"))
CLI = os.environ.get("BP_CLI", os.path.join(BUILD, "tools", "cli", "backplane"))
FUSSY = os.environ.get("BP_FUSSY", os.path.join(BUILD, "tests", "docs", "plugins", "backplane-fussy.so"))
PAGE = os.path.join(SOURCE, "docs", "plugin-refused.md")
MODEL = os.path.join(SOURCE, "tests", "data", "zoo", "zoo-v3.gguf")


class Case:
    """A folder of plugins of its own below a home, and the program."""

    def __init__(self, folder):
        self.home = os.path.join(folder, "home")
        self.plugins = os.path.join(self.home, "plugins")
        os.makedirs(self.plugins, mode=0o755)
        for path in (folder, self.home, self.plugins):
            os.chmod(path, 0o755)

    def put(self, *names):
        for name in names:
            path = FUSSY if name == "fussy" else os.path.join(BUILD, "test_plugins", f"backplane-{name}.so")
            to = shutil.copyfile(path, os.path.join(self.plugins, os.path.basename(path)))
            os.chmod(to, 0o644)
        return self

    def run(self, *keys, path=None):
        args = [CLI, "run", "-m", MODEL, "-p", "x", "-n", "1", "--temp", "0", "-s",
                f"engine.plugin_path={self.plugins if path is None else path}"]
        for key in keys:
            args += ["-s", key]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "LC_", "LANG"))}
        env.update(HOME=self.home, LC_ALL="C.UTF-8", ASAN_OPTIONS=env.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
        done = subprocess.run(args, capture_output=True, text=True, check=False, cwd=self.home, env=env, timeout=600)
        said = done.stderr
        if quote(self.home) != self.home:  # commands quote paths with spaces, and the page has none
            said = re.sub(rf"'({re.escape(self.home)}[^']*)'", r"\1", said)
        return done.returncode, said.replace(self.home, "/home/you").replace("this one is 183;", "this one is 62;")


def fussy(why, slot="quant", *more):
    return lambda c: c.put("fussy").run(f"slots.{slot}=fussy", f"plugin.fussy.why={why}", *more)


def coll(name):
    return lambda c: c.put(name).run(f"slots.coll={name}")


def world_writable(c):
    c.put("good")
    os.chmod(c.plugins, 0o777)
    return c.run("slots.coll=good")


def writable_file(c):
    c.put("good")
    os.chmod(os.path.join(c.plugins, "backplane-good.so"), 0o664)
    return c.run("slots.coll=good")


def sticky(c):
    c.put("good")
    os.chmod(c.plugins, 0o1777)
    return c.run("slots.coll=good")


def bad_link(c):
    shared = os.path.join(c.home, "shared")
    c.put("good")
    os.rename(c.plugins, shared)
    os.chmod(shared, 0o777)
    os.mkdir(c.plugins, mode=0o755)
    os.symlink(os.path.join(shared, "backplane-good.so"), os.path.join(c.plugins, "backplane-good.so"))
    return c.run("slots.coll=good")


def wrong_owner(c):
    if os.geteuid() != 0:
        return None
    c.put("good")
    os.chown(os.path.join(c.plugins, "backplane-good.so"), 1234, 1234)
    return c.run("slots.coll=good")


def twice(c):
    c.put("good")
    shutil.copy(os.path.join(c.plugins, "backplane-good.so"), os.path.join(c.plugins, "backplane-better.so"))
    return c.run("slots.coll=good")


def no_elf(c):
    path = os.path.join(c.plugins, "backplane-acme.so")
    with open(path, "w", encoding="utf-8") as f:
        f.write("hello")
    os.chmod(path, 0o644)
    return c.run("slots.coll=acme")


def other_machine(c):
    c.put("good")
    with open(os.path.join(c.plugins, "backplane-good.so"), "r+b") as f:
        f.seek(18)
        f.write(bytes([243, 0]))  # e_machine: RISC-V
    return c.run("slots.coll=good")


CASES = {
    "none": fussy("none"), "driver": fussy("driver"), "arch": fussy("arch"), "arch-machine": other_machine, "dtype": fussy("dtype"),
    "quant": fussy("quant"), "layout": fussy("layout", "mla.decode"), "shape": fussy("shape"), "align": fussy("align"),
    "feature": fussy("feature"), "feature-interface": lambda c: c.put("fussy").run("slots.moe=fussy"),
    "graph": fussy("graph"), "determinism": fussy("determinism"), "topology": fussy("topology"),
    "memory": fussy("memory"), "selftest": fussy("selftest"), "selftest-locale": coll("changes_locale"),
    "ext": fussy("ext"), "device": fussy("device"), "device-open": fussy("open"), "vendor": fussy("vendor"),
    "kv": fussy("dtype", "mla.decode", "kv.dtype=f16"),
    "abi-note": coll("old_note"), "abi-misspelt": coll("misspelt"), "abi-lie": coll("lying_version"),
    "abi-null": coll("null_query"), "abi-short": fussy("short"),
    "load-note": coll("no_note"), "load-entry": coll("no_entry"), "load-symbol": coll("missing_symbol"), "load-elf": no_elf,
    "library": coll("missing_library"),
    "config-key": lambda c: c.put("fussy").run("slots.quant=fussy", "plugin.fussy.split=4"),
    "config-value": lambda c: c.put("fussy").run("slots.quant=fussy", "plugin.fussy.splits=100"),
    "config-twice": twice,
    "config-wrapper": lambda c: c.put("fussy").run("wrap.quant=fussy"),
    "unknown": lambda c: c.put("fussy").run("slots.quant=fusy"),
    "no-file": lambda c: c.run("plugin.acme.file=backplane-acme.so"),
    "trust-folder": world_writable, "trust-file": writable_file, "trust-sticky": sticky, "trust-link": bad_link,
    "trust-owner": wrong_owner, "trust-relative": lambda c: c.run(path="plugins"),
    "trust-missing": lambda c: c.run(path=c.home + "/plugnis"),
}


def happen(name):
    with tempfile.TemporaryDirectory(prefix="bp-refused-") as folder:
        return CASES[name](Case(folder))


def write():
    """Renews the page's examples from what is printed now."""
    text = doc_pages.read(PAGE)
    for name in CASES:
        result = happen(name)
        if result is not None:
            last = result[1].splitlines()[-1]
            text = re.sub(rf"(^```text example={name}\n).*?(\n```$)", lambda m, t=last: m.group(1) + t + m.group(2), text,
                          flags=re.M | re.S)
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(text)


class Refused(unittest.TestCase):
    def examples(self):
        for block in doc_pages.split(doc_pages.read(PAGE))[0]:
            if block.words[:1] == ["text"] and block.words[1:] and block.words[1].startswith("example="):
                yield block.words[1][len("example="):], block

    def test_messages(self):
        seen = set()
        for name, block in self.examples():
            with self.subTest(example=name):
                self.assertIn(name, CASES)
                seen.add(name)
                result = happen(name)
                if result is None:
                    print(f"SKIP example {name}: only root can give files to others")
                    continue
                rc, said = result
                self.assertNotEqual(rc, 0, said)
                lines = said.splitlines()
                self.assertIsNone(doc_pages.expect(block.lines, lines[-len(block.lines):]), said)
        self.assertEqual(seen, set(CASES))

    def test_every_reason_has_a_heading_and_an_example(self):
        header = doc_pages.read(os.path.join(SOURCE, "core", "include", "backplane", "plugin.h"))
        table = header[header.index("#define BP_REASON_MAP"):header.index("enum bp_reason_code")]
        codes = re.findall(r"X\((\w+), \d+\)", table)
        self.assertGreater(len(codes), 15)
        sections = re.split(r"^## ", doc_pages.read(PAGE), flags=re.M)[1:]
        by_title = {s.splitlines()[0].strip(): s for s in sections}
        for code in codes:
            with self.subTest(code=code):
                self.assertIn(code, by_title)
                self.assertIn("example=", by_title[code])


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
