"""test_man.py - the manual pages: made for every command, complete, and installed.

Not here: whether roff likes them (test_man_lint.py).
SPDX-License-Identifier: MIT
"""
import os
import re
import subprocess

from cli_case import BUILD, CliCase, main, read


class Man(CliCase):
    def pages(self):
        self.good("help", "--man", self.tmp)
        return {name: read(os.path.join(self.tmp, name)).decode() for name in os.listdir(self.tmp)}

    def commands(self):
        text = self.good("help").out.decode()
        names = re.findall(r"(?m)^  ([a-z][a-z-]*) +[A-Z]", text)
        names.remove("help")
        self.assertGreaterEqual(set(names), {"run", "verify", "tokenize", "detokenize", "inspect", "ppl", "config"})
        return names

    def test_every_command_and_every_option(self):
        pages, commands = self.pages(), self.commands()
        self.assertEqual(set(pages), {"backplane.1", *(f"backplane-{name}.1" for name in commands)})
        n_options = 0
        for name in commands:
            page = pages[f"backplane-{name}.1"]
            help_text = self.good(name, "--help").out.decode()
            options = re.findall(r"(?m)^  (?:-(\w), )?--([a-z-]+)(?: (\S+))?", help_text)
            self.assertGreaterEqual(len(options), 6, name)
            for letter, word, arg in options:
                n_options += 1
                long_form = "--" + word
                want = r"\fB" + long_form.replace("-", r"\-") + r"\fR"
                if letter:
                    want = rf"\fB\-{letter}\fR, " + want
                if arg:
                    want += r" \fI" + arg.replace("-", r"\-") + r"\fR"
                self.assertIn(f".TP\n{want}\n", page, (name, word))
            self.assertIn(f"backplane\\-{name} \\- ", page)
            self.assertIn(".SH EXIT STATUS\n", page)
            self.assertIn(rf"\fB{name}\fR", pages["backplane.1"])
            self.assertRegex(pages["backplane.1"], rf"(?m)^\.BR backplane\\-{name} \(1\),?$")
        self.assertGreater(n_options, 60)

    def test_roff_does_not_take_text_for_commands(self):
        for name, page in self.pages().items():
            for line in page.splitlines():
                if line[:1] in (".", "'"):
                    self.assertRegex(line, r'^\.(\\"|TH|SH|TP|PP|BR|br)( |$)', name)
            self.assertNotRegex(page, r"[^\x20-\x7e\n]", name)
            self.assertNotRegex(page, r"(?<!\\)\\(?![fe&\-(\"])", name)
            self.assertNotIn("\n\n", page, name)

    def test_links_are_replaced_not_written_through(self):
        hard, soft = self.file("hard", b"a model"), self.file("soft", b"a model")
        folder = os.path.join(self.tmp, "pages")
        os.mkdir(folder)
        os.link(hard, os.path.join(folder, "backplane.1"))
        os.symlink(soft, os.path.join(folder, "backplane-run.1"))
        self.good("help", "--man", folder)
        self.assertEqual((read(hard), read(soft)), (b"a model", b"a model"))
        for name in ("backplane.1", "backplane-run.1"):
            self.assertTrue(read(os.path.join(folder, name)).startswith(b'.\\" Made by'), name)
        self.assertFalse([n for n in os.listdir(folder) if not n.endswith(".1")])

    def test_same_bytes_twice(self):
        self.assertEqual(self.pages(), self.pages())

    def test_refusals(self):
        self.refused_help("help", "--man", says=b"folder")
        self.refused_help("help", "--man", self.tmp, "x", says=b"folder")
        self.refused_help("help", "--man", self.tmp + "/none", says=b"cannot be created")

    def refused_help(self, *args, says):
        from cli_case import run
        r = run(*args)
        self.assertEqual((r.rc, r.out), (2, b""), r)
        self.assertEqual(r.err.count(b"\n"), 1, r)
        self.assertIn(says, r.err)

    def test_installed(self):
        done = subprocess.run(["cmake", "--install", BUILD, "--prefix", self.tmp, "--component", "man"],
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done)
        found = {name for _, _, names in os.walk(os.path.join(self.tmp, "share", "man", "man1")) for name in names}
        self.assertEqual(found, {"backplane.1", "backplane-check.1", *(f"backplane-{name}.1" for name in self.commands())})


if __name__ == "__main__":
    main()
