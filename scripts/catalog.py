"""One typed model of all answers, and `make check`: every problem in one run.

Run as `python -m scripts.catalog [--fix]`.
"""

import argparse
import re
import sys
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path

from pydantic import Field

from scripts import ROOT, bibliography, plan, prose, schema
from scripts.modules import Module, all_modules
from scripts.plan import Place, Plan, Wanted, Wording
from scripts.problems import Problem, report
from scripts.schema import Strict

EMBED = re.compile(
    r'^[ \t]*--8<--[ \t]+"(?P<path>[^":\n]+?)(?::(?P<section>[\w-]+))?"',
    re.M,
)
PRODUCT = re.compile(
    r"(?P<module>[a-z_]+/\w+)\.(?P<function>\w+)\.(?P<kind>svg|md|txt)$"
)
LANGUAGES = {"en": "English", "zh": "中文", "vi": "Tiếng Việt"}
KINDS = {"figure": "svg", "table": "md", "report": "txt"}
"""What a function makes, by the first word of its name."""


class Aliases(Strict):
    """The words people really type, by language."""

    en: list[str] = Field(min_length=1)
    zh: list[str] = Field(min_length=1)
    vi: list[str] = Field(min_length=1)


class Meta(Strict):
    """The front matter of an answer."""

    title: str = Field(min_length=2)
    question: Wording
    asked: list[str]
    tags: list[str] = Field(min_length=1)
    aliases: Aliases
    builds_on: list[str]
    sources: list[str] = Field(min_length=1)
    checked: date


@dataclass(frozen=True)
class Link:
    """A link from one answer to another; the sentence around it, if one is whole."""

    line: int
    target: str
    slug: str
    text: str
    sentence: str


@dataclass(frozen=True)
class Embed:
    """Code or a product that a page shows."""

    line: int
    path: str
    section: str = ""

    @property
    def product(self) -> re.Match | None:
        """The module, function and kind when a function makes it."""
        return PRODUCT.fullmatch(self.path)


@dataclass(frozen=True)
class Citation:
    """A source named in the text."""

    line: int
    key: str
    place: str


@dataclass
class Answer:
    """One page: its place in the tree, its front matter, its body.

    `meta` is None when the front matter is not valid; `problems` says why.
    Lines count from the top of the file.
    """

    path: Path
    meta: Meta | None
    body: str
    body_line: int
    field_lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def slug(self) -> str:
        """The permanent name: the file's own."""
        return self.path.stem

    @property
    def section(self) -> str:
        """The folder."""
        return self.path.parent.name

    @property
    def module(self) -> str:
        """The snippet module of the same name."""
        return f"{self.section}/{self.slug.replace('-', '_')}"

    @property
    def url(self) -> str:
        """Address within the site."""
        return f"{self.section}/{self.slug}/"

    def line(self, position: int) -> int:
        """The line of the file on which a position of the body lies."""
        return self.body_line + self.body.count("\n", 0, position)

    @cached_property
    def clear(self) -> str:
        """The body with code blanked out."""
        return prose.without_code(self.body)

    @cached_property
    def links(self) -> list[Link]:
        """Links to other pages of the book, in order."""
        return [
            Link(
                self.line(m.start()),
                m["target"],
                Path(m["target"].partition("#")[0]).stem,
                prose.plain(self.body[m.start("text") : m.end("text")]),
                prose.sentence_around(self.body, m.start(), m.end()),
            )
            for m in prose.LINK.finditer(self.clear)
            if re.fullmatch(r"[^:#]+\.md(#.*)?", m["target"])
        ]

    @cached_property
    def images(self) -> list[tuple[int, str, str]]:
        """(line, alternative text, target) of each image."""
        return [
            (self.line(m.start()), m["alt"].strip(), m["target"])
            for m in prose.IMAGE.finditer(self.clear)
        ]

    @cached_property
    def embeds(self) -> list[Embed]:
        """Sections of code, tables, reports and figures shown."""
        found = [
            Embed(self.line(m.start()), m["path"], m["section"] or "")
            for m in EMBED.finditer(self.body)
        ]
        found += [
            Embed(line, target)
            for line, _, target in self.images
            if PRODUCT.fullmatch(target)
        ]
        return sorted(found, key=lambda embed: embed.line)

    @cached_property
    def citations(self) -> list[Citation]:
        """Sources named in the text, in order."""
        return [
            Citation(self.line(m.start()), m["key"], (m["place"] or "").strip())
            for m in prose.CITATION.finditer(self.clear)
        ]

    @cached_property
    def formulas(self) -> list[tuple[int, str, bool]]:
        """(line, TeX, is displayed) of each formula."""
        return [
            (self.line(at), tex, display)
            for at, tex, display in prose.formulas(self.body)
        ]

    @cached_property
    def parts(self) -> dict[str, tuple[int, str]]:
        """(line, text) under each second-level heading."""
        heads = list(re.finditer(r"^## +(.+?)[ \t]*$", self.clear, re.M))
        ends = [m.start() for m in heads[1:]] + [len(self.body)]
        return {
            self.body[m.start(1) : m.end(1)]: (
                self.line(m.start()),
                self.body[m.end() : end].strip("\n"),
            )
            for m, end in zip(heads, ends, strict=True)
        }

    @cached_property
    def short_answer(self) -> dict[str, str]:
        """The short answer's Markdown by language."""
        _, text = self.parts.get("Short answer", (0, ""))
        tabs = re.split(r'^=== "(.+?)"[ \t]*$', text, flags=re.M)
        found = dict(zip(tabs[1::2], tabs[2::2], strict=True))
        return {
            code: prose.dedent(found[name]).strip()
            for code, name in LANGUAGES.items()
            if found.get(name, "").strip()
        }

    def blocks(self, heading: str, kind: str) -> list[tuple[str, str]]:
        """(title, text) of the `!!! kind` or `??? kind` blocks under a heading."""
        _, text = self.parts.get(heading, (0, ""))
        found = re.split(rf'^(?:!!!|\?\?\?\+?) {kind} "(.+)"[ \t]*$', text, flags=re.M)
        texts = (prose.dedent(t).strip() for t in found[2::2])
        return list(zip(found[1::2], texts, strict=True))

    @cached_property
    def follow_ups(self) -> list[tuple[str, str]]:
        """(question, answer) of each follow-up question."""
        return self.blocks("Follow-up questions", "question")

    @cached_property
    def wrong_answers(self) -> list[tuple[str, str]]:
        """(statement, what is wrong) of each common wrong answer."""
        return self.blocks("Common wrong answers", "wrong")

    @cached_property
    def key_points(self) -> list[str]:
        """What a complete answer covers."""
        _, text = self.parts.get("A complete answer covers", (0, ""))
        items = re.split(r"^[-*] +", text, flags=re.M)[1:]
        return [" ".join(item.split()) for item in items]


@dataclass
class Book:
    """All answers, the plan with what was asked, and the bibliography."""

    root: Path
    plan: Plan
    answers: dict[str, Answer]
    sources: dict[str, bibliography.Source]
    problems: list[Problem]

    @property
    def sections(self) -> dict[str, dict]:
        """The plan of each section, by name, in order."""
        return self.plan.sections

    @property
    def lists(self) -> dict[str, dict]:
        """The plan of each list that asked, by name."""
        return self.plan.lists

    @property
    def wanted(self) -> dict[str, Wanted]:
        """Every question that was asked, by slug."""
        return self.plan.wanted

    def place(self, asked: str) -> Place | None:
        """Where an asked id belongs."""
        return self.plan.place(asked)

    @cached_property
    def modules(self) -> dict[str, Module]:
        """Every snippet module, by name."""
        return all_modules(self.root)

    @cached_property
    def sound(self) -> dict[str, Answer]:
        """The answers whose front matter is valid."""
        return {s: a for s, a in self.answers.items() if a.meta}

    @property
    def unanswered(self) -> list[str]:
        """Slugs that were asked and have no page, in the order asked."""
        return [slug for slug in self.wanted if slug not in self.answers]

    def linked_from(self, slug: str) -> list[tuple[Answer, Link]]:
        """The first link of each other answer to this one, if any with a sentence."""
        found = []
        for answer in self.ordered:
            links = [link for link in answer.links if link.slug == slug]
            if links and answer.slug != slug:
                told = (link for link in links if link.sentence)
                found.append((answer, next(told, links[0])))
        return found

    @cached_property
    def ordered(self) -> list[Answer]:
        """Section by section, `builds_on` first, then the order asked."""
        asked = {slug: i for i, slug in enumerate(self.wanted)}
        names = list(self.sections)

        def place(slug: str) -> tuple:
            section = self.sound[slug].section
            known = names.index(section) if section in names else len(names)
            return known, asked.get(slug, len(asked)), slug

        done: dict[str, Answer] = {}

        def add(slug: str, section: str) -> None:
            answer = self.sound.get(slug)
            if not answer or slug in done or answer.section != section:
                return
            pending.add(slug)
            for base in answer.meta.builds_on:
                if base not in pending:
                    add(base, section)
            done[slug] = answer

        pending: set[str] = set()
        for slug in sorted(self.sound, key=place):
            add(slug, self.sound[slug].section)
        return list(done.values())


def read_answer(path: Path, shown: str) -> Answer:
    """Parse one page; bad content becomes problems, never an exception."""
    return _parse(path, shown, path.read_text(encoding="utf-8"))


@lru_cache(maxsize=512)
def _parse(path: Path, shown: str, text: str) -> Answer:
    """The same text gives the same object, with what was found in it so far."""
    found = re.match(r"---\n(.*?\n)---[ \t]*\n", text, re.S)
    if not found:
        problem = Problem(
            shown,
            1,
            "no front matter",
            "start the page with a line ---, the fields, and a line ---",
        )
        return Answer(path, None, text, 1, problems=[problem])
    body, line = text[found.end() :], text.count("\n", 0, found.end()) + 1
    answer = Answer(path, None, body, line)
    front = schema.read(found[1], shown, "the front matter", first=2)
    answer.field_lines = {
        ".".join(path): line
        for path, line in front.lines.items()
        if all(isinstance(part, str) for part in path)
    }
    form = "see the page form in CONTRIBUTING.md"
    answer.meta, answer.problems = schema.validate(front, Meta, _owner, form)
    return answer


def _owner(*_) -> tuple[str, type[Strict], int]:
    return "the front matter", Meta, 0


def load(root: Path = ROOT) -> Book:
    """The whole book, as it stands in docs/."""
    docs = root / "docs"
    sources, problems = bibliography.read(docs / "references.bib")
    problems = [
        Problem(str(Path(p.path).relative_to(root)), p.line, p.what, p.fix)
        for p in problems
    ]
    asked = plan.read(root)
    problems += asked.problems
    answers: dict[str, Answer] = {}
    for path in sorted(docs.glob("*/*.md")):
        shown = str(path.relative_to(root))
        answer = read_answer(path, shown)
        problems += answer.problems
        if path.stem in answers:
            other = answers[path.stem].path.relative_to(root)
            problems.append(
                Problem(
                    shown,
                    1,
                    f'slug "{path.stem}" is taken by {other}',
                    "rename this file; a published slug never changes",
                )
            )
            continue
        answers[path.stem] = answer
    return Book(root, asked, answers, sources, problems)


def main() -> int:
    """Print every problem of every page; with --fix, first repair what can be."""
    from scripts import checks

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true", help="repair what can be")
    if parser.parse_args().fix:
        for line in checks.fix(load()):
            print(f"fixed {line}")
    book = load()
    problems = checks.run(book)
    if problems:
        print(report(problems), file=sys.stderr)
        return 1
    print(f"{len(book.answers)} answers, no problem")
    return 0


if __name__ == "__main__":
    sys.exit(main())
