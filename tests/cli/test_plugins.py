"""test_plugins.py - `plugins`, and running a model with a plugin that an INI names: chosen, refused, mended.

The plugins come from the loader's tests (tests/unit/loader/plugins); their folder is test_plugins below BP_BUILD.
SPDX-License-Identifier: MIT
"""
import hashlib
import os
import re
import shutil
import subprocess
from shlex import quote

from cli_case import CLI, ZOO_V3, CliCase, main, read, run

PLUGINS = os.path.join(os.environ["BP_BUILD"], "test_plugins")
RUN = ("run", "-m", ZOO_V3, "-p", "abc", "-n", "2", "--temp", "0", "--ignore-eos")


class Plugins(CliCase):
    def setUp(self):
        super().setUp()
        self.tmp = os.path.realpath(self.tmp)
        os.chmod(self.tmp, 0o755)
        self.path = f"engine.plugin_path={self.tmp}"

    def install(self, name, as_name=None):
        path = os.path.join(self.tmp, as_name or f"backplane-{name}.so")
        shutil.copyfile(os.path.join(PLUGINS, f"backplane-{name}.so"), path)
        os.chmod(path, 0o644)
        return path

    def listed(self, *args):
        plugins = self.good_json("plugins", "-s", self.path, *args)["plugins"]
        self.assertEqual(plugins[-1]["name"], "ref")
        self.assertEqual(plugins[-1]["status"], "built in")
        self.assertIn("bp.mla.decode", plugins[-1]["interfaces"])
        return {p["name"]: p for p in plugins[:-1]}

    # ---- listing ----

    def test_what_is_there(self):
        self.assertEqual(self.listed(), {})
        good = self.install("good")
        self.install("old_note")
        self.install("no_note")
        p = self.listed()
        self.assertEqual(sorted(p), ["good", "no_note", "old_note"])
        self.assertEqual({k: p["good"][k] for k in ("status", "version", "kind", "abi", "interfaces", "file")},
                         {"status": "ready", "version": "1.2.3", "kind": "backend", "abi": "0.1",
                          "interfaces": ["bp.coll"], "file": good})
        self.assertNotIn("why", p["good"])
        self.assertEqual((p["old_note"]["status"], p["old_note"]["reason"], p["old_note"]["abi"]),
                         ("refused", "ABI", "0.99"))
        self.assertEqual((p["no_note"]["status"], p["no_note"]["reason"], p["no_note"]["version"]),
                         ("refused", "LOAD", None))
        out = self.good("plugins", "-s", self.path).out.decode()
        for word in ("good 1.2.3, backend, ABI 0.1, ready", "old_note 1.2.3, backend, ABI 0.99, refused",
                     "rebuild the plugin", good, "ref 0.1.0, backend, ABI 0.1, built in"):
            self.assertIn(word, out)

    def test_the_command_that_mends(self):
        good = self.install("good")
        os.chmod(good, 0o666)
        p = self.listed()["good"]
        self.assertEqual((p["status"], p["mend"]), ("refused", f"chmod go-w {quote(good)}"))
        os.chmod(self.tmp, 0o757)
        p = self.listed()["good"]
        self.assertEqual(p["mend"], f"chmod go-w {quote(self.tmp)}")
        for _ in range(2):
            mend = self.listed()["good"]["mend"]
            self.assertIn(mend, self.good("plugins", "-s", self.path).out.decode())
            subprocess.run(mend, shell=True, check=True)
        self.assertEqual(self.listed()["good"]["status"], "ready")

    def test_one_file(self):
        self.install("good")
        old = self.install("old_note")
        os.chmod(self.tmp, 0o777)  # where a file lies does not matter here
        p = self.good_json("plugins", "-f", os.path.join(self.tmp, "backplane-good.so"))["plugins"]
        self.assertEqual([(x["name"], x["status"]) for x in p], [("good", "ready")])
        done = subprocess.run([CLI, "plugins", "-f", old], capture_output=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"refused", done.stdout)
        self.refused("plugins", "-f", os.path.join(self.tmp, "none.so"), says="none.so", code="E_IO")
        self.refused("plugins", "-f", self.tmp, says="directory", code="E_IO")
        text = self.file("text.so", b"not a library at all\n")
        done = subprocess.run([CLI, "plugins", "-f", text], capture_output=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"no ELF file", done.stdout)

    def test_a_file_name_cannot_forge_a_line(self):
        path = self.install("good", "x\n\x1b[31mref built in.so")
        r = self.good("plugins", "-f", path)
        self.assertEqual(r.out.count(b"ref built in"), 1, r)
        self.assertNotIn(b"\x1b", r.out)
        self.assertIn(b"x??[31mref built in.so\n", r.out)
        self.assertEqual(self.good_json("plugins", "-f", path)["plugins"][0]["file"], path)

    def test_folders(self):
        self.refused("plugins", "-s", "engine.plugin_path=here", says="relative path", code="E_CONFIG")
        self.refused("plugins", "-s", "engine.plugin_path=/no/such/folder", says="/no", code="E_CONFIG")

    def test_nothing_is_run(self):
        """A plugin whose library is missing, or that would fail to open, is ready as far as its note goes."""
        for name in ("missing_library", "open_fails", "changes_locale"):
            self.install(name)
            self.assertEqual(self.listed()[name]["status"], "ready")

    # ---- running ----

    def backends(self, *args):
        r = self.good(*RUN, "-s", self.path, "--json", *args)
        out = r.json()
        slots = {s["slot"]: s["provider"] for s in out["backends"]["slots"]}
        return slots, [t["id"] for t in out["tokens"]], r

    def test_chosen_by_editing_the_ini_alone(self):
        before = hashlib.sha256(read(CLI)).hexdigest()
        slots, plain, _ = self.backends()
        self.assertEqual(slots["coll"], "ref")
        self.install("good")
        ini = self.file("my.ini", b"[slots]\ncoll = good\n[plugin.good]\nnumber = 9\n")
        slots, ids, r = self.backends("-c", ini)
        self.assertEqual((slots["coll"], ids, r.err), ("good", plain, b""), r)
        slots, _, _ = self.backends()
        self.assertEqual(slots["coll"], "good", "auto takes what is found before what is built in")
        self.assertEqual(hashlib.sha256(read(CLI)).hexdigest(), before)

    def test_two_names_for_one_file(self):
        self.install("good")
        slots, _, _ = self.backends("-s", "plugin.b.file=backplane-good.so", "-s", "plugin.a.file=backplane-good.so",
                                    "-s", "slots.coll=b")
        self.assertEqual(slots["coll"], "b")

    def test_named_and_broken_is_an_error(self):
        for name, word in (("old_note", "ABI 0.99 and this engine 0.1"), ("lying_abi", "ABI 0.99"),
                           ("missing_library", "libbp_test_helper.so"), ("no_entry", "bp_plugin_query_v1"),
                           ("missing_symbol", "bp_test_symbol_that_nobody_has"),
                           ("open_fails", "the chip is on holiday"), ("null_query", "ABI 0.1"),
                           ("lying_name", "another")):
            self.install(name)
            self.refused(*RUN, "-s", self.path, "-s", f"slots.coll={name},ref", says=(word, name, "slot coll"))

    def test_without_a_note_it_may_be_meant_for_any_slot(self):
        self.install("no_note")
        r = run(*RUN, "-s", self.path, "-s", "slots.coll=no_note,ref")
        self.assertEqual((r.rc, r.out), (2, b""), r)
        self.assertRegex(r.err.decode(), r"^warning: loader: slot device: plugin no_note .* is passed over: .*\n"
                                         r"backplane run: slot coll: plugin no_note cannot be used: .*note.*\n$")

    def test_auto_passes_over_and_says_so(self):
        path = self.install("lying_abi")
        slots, _, r = self.backends()
        self.assertEqual(slots["coll"], "ref")
        self.assertEqual(r.err.count(b"passed over"), 1, r)
        self.assertIn(path.encode(), r.err)

    def test_unable_is_an_error_only_when_named_alone(self):
        self.install("says_no")
        self.refused(*RUN, "-s", self.path, "-s", "slots.coll=says_no", says="TOPOLOGY (not today)", code="E_CONFIG")
        self.assertEqual(self.backends("-s", "slots.coll=says_no,ref")[0]["coll"], "ref")
        slots, _, r = self.backends("-s", "slots.coll=says_no", "-s", "engine.fallback=warn")
        self.assertEqual(slots["coll"], "ref")
        self.assertIn(b"not today", r.err)

    def test_settings(self):
        self.install("good")
        for setting, word in (("plugin.good.numbre=3", 'did you mean "number"?'),
                              ("plugin.good.number=1000", "from 1 to 100"),
                              ("plugin.goood.number=3", 'did you mean "good"?'),
                              ("plugin.x.file=backplane-none.so", "backplane-none.so"),
                              ("slots.coll=godo", 'did you mean "good"?')):
            self.refused(*RUN, "-s", self.path, "-s", "slots.coll=good", "-s", setting, says=word, code="E_CONFIG")

    def test_untrusted_places(self):
        good = self.install("good")
        os.chmod(self.tmp, 0o777)
        self.refused(*RUN, "-s", self.path, says=(self.tmp, "everybody", f"chmod go-w {quote(self.tmp)}"), code="E_CONFIG")
        os.chmod(self.tmp, 0o755)
        os.chmod(good, 0o664)
        self.refused(*RUN, "-s", self.path, "-s", "slots.coll=good", says=(f"chmod go-w {quote(good)}",), code="E_CONFIG")
        os.chmod(good, 0o644)
        open_folder = os.path.join(self.tmp, "open")
        os.mkdir(open_folder)
        os.chmod(open_folder, 0o777)
        os.rename(good, os.path.join(open_folder, "backplane-good.so"))
        os.symlink("open/backplane-good.so", good)
        self.refused(*RUN, "-s", self.path, "-s", "slots.coll=good", says=f"chmod go-w {quote(open_folder)}")
        self.refused(*RUN, "-s", "engine.plugin_path=plugins", says="relative path", code="E_CONFIG")

    def test_wrong_owner(self):
        if os.geteuid() != 0:
            self.skipTest("giving files to another user needs root")
        good = self.install("good")
        os.chown(good, 12345, 12345)
        self.refused(*RUN, "-s", self.path, "-s", "slots.coll=good", says=("user 12345", f"chown 0 {quote(good)}"))

    def mended(self, folder, guilty, mend, spoil, *more):
        """Spoils one component of a path: it is named with the command that mends it, and that command does."""
        spoil()
        r = self.refused(*RUN, "-s", f"engine.plugin_path={folder}", "-s", "slots.coll=good", *more,
                         says=(guilty, f"run: {mend}"), code="E_CONFIG")
        said = re.search(r"; run: (.*)\n$", r.err.decode())
        self.assertIsNotNone(said, r)
        self.assertEqual(said.group(1), mend)
        subprocess.run(said.group(1), shell=True, check=True)
        out = self.good(*RUN, "-s", f"engine.plugin_path={folder}", "-s", "slots.coll=good", "--json", *more).json()
        self.assertEqual([s["provider"] for s in out["backends"]["slots"] if s["slot"] == "coll"], ["good"])

    def test_the_guilty_component_of_a_path(self):
        outer = os.path.join(self.tmp, "outer")
        inner = os.path.join(outer, "plugins")
        os.makedirs(inner, 0o755)
        os.chmod(outer, 0o755)
        os.chmod(inner, 0o755)
        good = os.path.join(inner, "backplane-good.so")
        os.rename(self.install("good"), good)
        link = os.path.join(self.tmp, "link")
        os.symlink("outer/plugins", link)
        for what, mode in ((outer, 0o777), (outer, 0o775), (inner, 0o757), (good, 0o646)):
            for folder in (inner, link):  # a link is followed: where it leads to counts
                with self.subTest(what=what, mode=oct(mode), folder=folder):
                    self.mended(folder, what, f"chmod go-w {what}", lambda: os.chmod(what, mode))
        # A file named by its absolute path, with a folder that is fine beside it.
        with self.subTest("absolute file"):
            os.mkdir(os.path.join(self.tmp, "empty"), 0o755)
            self.mended(os.path.join(self.tmp, "empty"), outer, f"chmod go-w {outer}", lambda: os.chmod(outer, 0o777),
                        "-s", f"plugin.good.file={good}")
        # Others may put files into a sticky folder, and may not replace what is there.
        os.chmod(outer, 0o1777)
        self.good(*RUN, "-s", f"engine.plugin_path={inner}", "-s", "slots.coll=good")

    def test_a_relative_file_in_a_section(self):
        self.install("good")
        r = run(*RUN, "-s", self.path, "-s", "plugin.good.file=./backplane-good.so", "-s", "slots.coll=good", cwd=self.tmp)
        self.assertEqual((r.rc, r.out), (2, b""), r)
        # Its note is not read, so it may be meant for any slot, and the first one with `auto` says so as well.
        self.assertRegex(r.err.decode().splitlines()[-1], r'^backplane run: slot coll: plugin good cannot be used: '
                                                          r'"./backplane-good.so" is a relative path; write an absolute one')

    def test_wrong_owner_of_a_folder(self):
        if os.geteuid() != 0:
            self.skipTest("giving folders to another user needs root")
        folder = os.path.join(self.tmp, "theirs")
        os.mkdir(folder, 0o755)
        os.rename(self.install("good"), os.path.join(folder, "backplane-good.so"))
        self.mended(folder, "user 12345", f"chown 0 {folder}", lambda: os.chown(folder, 12345, 12345))


if __name__ == "__main__":
    main()
