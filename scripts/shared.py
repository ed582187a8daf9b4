"""`make shared`: lines of code that two or more pages cite, and what each says.

An editor compares the sentences and makes them agree. Grouped by repository at
a commit and by file. A location is a line that they have in common: a long
range can be part of several. Citations of a whole file are compared likewise.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from scripts import ROOT, prose
from scripts.catalog import Answer, Book, load
from scripts.problems import report


@dataclass(frozen=True, order=True)
class Mention:
    """What a page says of lines of a file; all zero for the whole file."""

    low: int
    high: int
    page: str
    line: int
    sentence: str

    def __str__(self) -> str:
        """The page's file and line, the lines that it cites, its sentence."""
        lines = f"L{self.low}–{self.high}" if self.low < self.high else f"L{self.low}"
        lines = lines if self.low else "whole file"
        return f"  {self.page}:{self.line} ({lines})\n    {self.sentence}"


File = tuple[str, str]
"""Repository at a commit, and a path in it."""


def mentions(book: Book, answer: Answer) -> Iterator[tuple[File, Mention]]:
    """Each citation of a file of software on a page."""
    page = str(answer.path.relative_to(book.root))
    for m in prose.CITATION.finditer(answer.clear):
        source = book.sources.get(m["key"])
        if not (source and source.commit and m["place"]):
            continue
        path, _, lines = m["place"].strip().partition("#")
        low, _, high = lines.replace("L", "").partition("-")
        low, high = (int(n) if n.isdigit() else 0 for n in (low, high or low))
        said = prose.statement_around(answer.body, m.start(), m.end())
        mention = Mention(low, high, page, answer.line(m.start()), said)
        yield (source.label, path), mention


def locations(found: list[Mention]) -> Iterator[list[Mention]]:
    """Mentions of one file that share a line, of two or more pages.

    Whichever mentions overlap stand together once, in the largest such group.
    """
    groups = {
        frozenset(m for m in found if m.low <= line <= m.high)
        for line in (m.low for m in found)
    }
    for group in sorted(map(sorted, groups)):
        within_other = any(set(group) < other for other in groups)
        if not within_other and len({m.page for m in group}) > 1:
            yield group


def shared(book: Book) -> dict[File, list[list[Mention]]]:
    """By file, the locations that two or more pages cite."""
    files: dict[File, list[Mention]] = {}
    for answer in book.answers.values():
        for file, mention in mentions(book, answer):
            files.setdefault(file, []).append(mention)
    found = {file: list(locations(files[file])) for file in sorted(files)}
    return {file: groups for file, groups in found.items() if groups}


def text(book: Book, name: str = "") -> str:
    """The shared locations and their number; only those that name a text."""
    blocks, count = [], 0
    for (repository, path), groups in shared(book).items():
        head = f"{repository} {path}"
        told = ["\n".join(map(str, group)) for group in groups]
        if told := [one for one in told if name in f"{head}\n{one}"]:
            blocks.append("\n\n".join([head, *told]))
            count += len(told)
    last = f"{count} location(s) in {len(blocks)} file(s), cited by two or more pages"
    return "\n\n\n".join([*blocks, last])


def main() -> int:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    about = "print only the locations that name it: a page, a repository, an argument"
    parser.add_argument("name", nargs="?", default="", help=about)
    name, book = parser.parse_args().name, load(ROOT)
    if not book.plan.usable:
        print(report(book.problems), file=sys.stderr)
        return 1
    print(text(book, name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
