"""doc_pages.py - reads the documentation's Markdown: fenced blocks, headings as anchors, links.

A block whose fence says `sh test` is run by test_commands.py; `exit=N` after it is the status that is expected of the
block's last command, 0 when absent. A block `text output` right below it is what must be seen, see expect().
Threads: none. SPDX-License-Identifier: MIT
"""
import os
import re

FENCE = re.compile(r"^(\s*)(`{3,})\s*(.*?)\s*$")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+(?:\([^()\s]*\))?)(?:\s+\"[^\"]*\")?\)")


class Block:
    """One fenced block: the words of its fence, its lines, the line number of its fence."""

    def __init__(self, info, line):
        self.words, self.line, self.lines = info.split(), line, []

    def is_test(self):
        return self.words[:2] == ["sh", "test"]

    def is_output(self):
        return self.words[:2] == ["text", "output"]

    def option(self, name, default):
        for word in self.words[2:]:
            if word.startswith(name + "="):
                return word[len(name) + 1:]
        return default


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def split(text):
    """(blocks, the lines outside of blocks as (number, line)); an open fence is an error."""
    blocks, prose, block, fence, indent = [], [], None, "", ""
    for number, line in enumerate(text.splitlines(), 1):
        m = FENCE.match(line)
        if block is None and m:
            indent, fence = m.group(1), m.group(2)
            block = Block(m.group(3), number)
        elif block is None:
            prose.append((number, line))
        elif m and m.group(2) == fence and not m.group(3):
            blocks.append(block)
            block = None
        else:
            block.lines.append(line[len(indent):] if line.startswith(indent) else line)
    if block is not None:
        raise ValueError(f"line {block.line}: the block has no end")
    return blocks, prose


def anchors(text):
    """The ids that a page's headings get: lower case, blanks to '-', other marks dropped, doubles numbered."""
    seen, out = {}, set()
    for _, line in split(text)[1]:
        m = HEADING.match(line)
        if not m:
            continue
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", m.group(2)).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", title.lower(), flags=re.UNICODE).replace(" ", "-")
        n = seen.get(slug, 0)
        seen[slug] = n + 1
        out.add(f"{slug}-{n}" if n else slug)
    return out


def links(text):
    """(line, target) of every link outside of code."""
    for number, line in split(text)[1]:
        for m in LINK.finditer(re.sub(r"`[^`]*`", lambda c: "`" + "x" * (len(c.group(0)) - 2) + "`", line)):
            yield number, m.group(1)


def line_matches(wanted, got):
    """Equal, but for `...` in `wanted`, which stands for any characters, and blanks at the end."""
    pattern = ".*".join(re.escape(part) for part in wanted.rstrip().split("..."))
    return re.fullmatch(pattern, got.rstrip()) is not None


def expect(wanted, got):
    """Are the wanted lines the lines got, in order? A line that is only `...` stands for any lines, also none.
    Returns None when they are, else the first wanted line that was not found."""
    at, skip = 0, False
    for line in wanted:
        if line.strip() == "...":
            skip = True
            continue
        found = next((i for i in range(at, len(got)) if line_matches(line, got[i])), None)
        if found is None or (not skip and found != at):
            return line
        at, skip = found + 1, False
    if not skip and at != len(got):
        return f"(end of output, but there is more: {got[at]!r})"
    return None


def pages(root):
    """All Markdown pages of the repository, relative to its root."""
    out = [n for n in sorted(os.listdir(root)) if n.endswith(".md")]
    for top in ("docs", "sdk", "core", "plugins", "tools", "tests", "etc"):
        for folder, subfolders, names in os.walk(os.path.join(root, top)):
            subfolders[:] = [s for s in subfolders if not s.startswith(".")]
            out += [os.path.relpath(os.path.join(folder, n), root) for n in names if n.endswith(".md")]
    return sorted(out)
