"""test_links.py - every relative link of the documentation leads to something that exists, anchors included.

Links to the network are not followed. The same of the pages as they are installed, where headers and the INI lie elsewhere.
BP_SOURCE, BP_BUILD and BP_CMAKE are set by CMake. SPDX-License-Identifier: MIT
"""
import os
import subprocess
import sys
import tempfile
import unittest
from urllib.parse import unquote

import doc_pages

SOURCE = os.environ.get("BP_SOURCE", "")


def bad_links(root, page, read=doc_pages.read, exists=os.path.exists):
    """Sentences about the links of one page that lead nowhere."""
    for line, target in doc_pages.links(read(os.path.join(root, page))):
        if target.split(":")[0] in ("http", "https", "mailto"):
            continue
        path, _, anchor = unquote(target).partition("#")
        if path.startswith("/"):
            yield f"{page}:{line}: {target} is absolute"
            continue
        full = os.path.normpath(os.path.join(root, os.path.dirname(page), path)) if path else os.path.join(root, page)
        if not exists(full):
            yield f"{page}:{line}: {target}: there is no such file"
        elif anchor and full.endswith(".md") and anchor not in doc_pages.anchors(read(full)):
            yield f"{page}:{line}: {target}: the page has no such heading"


class Links(unittest.TestCase):
    def test_all_pages(self):
        pages = doc_pages.pages(SOURCE)
        self.assertGreater(len(pages), 20)
        bad, n = [], 0
        for page in pages:
            n += len(list(doc_pages.links(doc_pages.read(os.path.join(SOURCE, page)))))
            bad += bad_links(SOURCE, page)
        self.assertGreater(n, 50)
        self.assertEqual(bad, [])

    def test_installed(self):
        with tempfile.TemporaryDirectory(prefix="bp-links-") as prefix:
            subprocess.run([os.environ["BP_CMAKE"], "--install", os.environ["BP_BUILD"], "--prefix", prefix], check=True,
                           capture_output=True, timeout=300)
            pages = [os.path.relpath(os.path.join(folder, n), prefix) for folder, _, names in os.walk(prefix)
                     for n in names if n.endswith(".md")]
            # Nothing is left out, and every link that was rewritten leads to what is installed.
            top = "share/doc/backplane"
            self.assertLessEqual({f"{top}/{p}" for p in doc_pages.pages(SOURCE) if p.startswith("docs/") or "/" not in p},
                                 set(pages))
            bad, outside = [], 0
            for page in pages:
                bad += bad_links(prefix, page)
                for _, target in doc_pages.links(doc_pages.read(os.path.join(prefix, page))):
                    full = os.path.normpath(os.path.join(os.path.dirname(page), unquote(target).partition("#")[0]))
                    self.assertFalse(full.startswith(".."), f"{page}: {target} leaves the prefix")
                    outside += full.startswith(("include/", "share/backplane/"))
            self.assertEqual(bad, [])
            self.assertGreater(outside, 20)

    def test_every_page_of_docs_is_linked(self):
        """A page that nobody links to is not found."""
        linked = set()
        for page in doc_pages.pages(SOURCE):
            for _, target in doc_pages.links(doc_pages.read(os.path.join(SOURCE, page))):
                path = unquote(target).partition("#")[0]
                full = os.path.normpath(os.path.join(os.path.dirname(page), path))
                linked.add(full)
                if os.path.isdir(os.path.join(SOURCE, full)):
                    linked.update(os.path.join(full, n) for n in os.listdir(os.path.join(SOURCE, full)))
        for page in doc_pages.pages(SOURCE):
            if page.startswith("docs/"):
                self.assertIn(page, linked)

    def test_planted(self):
        """The test sees what it looks for."""
        files = {"/r/a.md": "# One `x`, two\n# One\n# One\n[a](b.md#there) [c](no.md) `[d](no.md)`\n[e](#one-1) [f](#one-2)\n"
                            "```\n[g](no.md)\n# Hidden\n```\n[h](#hidden) [i](/abs.md) [j](#one-x-two) [k](https://x.org/y)\n",
                 "/r/b.md": "## There\n"}
        bad = list(bad_links("/r", "a.md", read=files.__getitem__, exists=files.__contains__))
        self.assertEqual(bad, ["a.md:4: no.md: there is no such file", "a.md:5: #one-2: the page has no such heading",
                               "a.md:10: #hidden: the page has no such heading", "a.md:10: /abs.md is absolute"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
