"""Every check of a page: what it protects stands in CONTRIBUTING.md."""

import os
import re
import unicodedata
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path

from scripts import bibliography, prose, tex
from scripts.catalog import KINDS, LANGUAGES, PRODUCT, Answer, Book
from scripts.modules import Module
from scripts.plan import SLUG
from scripts.problems import Problem, nearest

PARTS = (
    "Short answer",
    "Where the setting changes the answer",
    "Common wrong answers",
    "Follow-up questions",
    "A complete answer covers",
)
OPTIONAL = "Where the setting changes the answer"
ANSWERED = "tests/contracts/answered.txt"
TODO = re.compile(r"\bTODO\b")


def _names(a: Answer) -> list[str]:
    aliases = a.meta.aliases
    names = [a.meta.title, *aliases.en, *aliases.zh, *aliases.vi]
    return [name for name in names if not TODO.search(name)]


@cache
def _typed(name: str) -> str:
    """Letters and digits only, as the search compares names."""
    folded = unicodedata.normalize("NFKC", name).lower()
    return "".join(c for c in folded if c.isalnum())


class Check:
    """One run over a book: remembers the root and the snippet modules."""

    def __init__(self, book: Book, today: date) -> None:
        """Read what the checks compare with."""
        self.book = book
        self.today = today
        self.modules = book.modules

    def at(self, answer: Answer, line: int, what: str, fix: str) -> Problem:
        """A problem on a page."""
        path = str(answer.path.relative_to(self.book.root))
        return Problem(path, line, what, fix)

    def place(self, a: Answer) -> Iterator[Problem]:
        """The folder is a section, the file name the slug that was asked."""
        sections = self.book.sections
        if a.section not in sections:
            what = f'unknown section "{a.section}".{nearest(a.section, sections)}'
            yield self.at(a, 1, what, f"move it to one of {', '.join(sections)}")
        if not SLUG.fullmatch(a.slug):
            what = f'file name "{a.slug}" is not a slug'
            yield self.at(a, 1, what, "use lower-case words joined by hyphens")
        wanted = self.book.wanted.get(a.slug)
        if wanted and wanted.section != a.section:
            what = f'"{a.slug}" was asked under "{wanted.section}", not "{a.section}"'
            fix = f"move the page to docs/{wanted.section}/{a.slug}.md"
            yield self.at(a, 1, what, fix)

    def asked(self, a: Answer) -> Iterator[Problem]:
        """Ids and wording are those of docs/questions.yml, each claimed once."""
        owner = {i: w.slug for w in self.book.wanted.values() for i in w.asked}
        line = a.field_lines.get("asked", 1)
        for name in a.meta.asked:
            if name not in owner:
                what = f'unknown asked id "{name}".{nearest(name, owner)}'
                yield self.at(a, line, what, "use an id of docs/questions.yml")
            elif owner[name] != a.slug:
                what = f'asked id "{name}" belongs to "{owner[name]}"'
                fix = f"remove the id, or rename the file to {owner[name]}.md"
                yield self.at(a, line, what, fix)
        for other in self.book.sound.values():
            both = sorted(set(other.meta.asked) & set(a.meta.asked))
            if both and other.slug < a.slug:
                shown = other.path.relative_to(self.book.root)
                what = f'asked id "{both[0]}" is claimed by {shown} too'
                yield self.at(a, line, what, "leave the id on one page")
        yield from self._wording(a, line)

    def names(self, a: Answer) -> Iterator[Problem]:
        """A name that one types into the search leads to one page."""
        mine = {_typed(name): name for name in _names(a)}
        for other in self.book.sound.values():
            if other.slug == a.slug:
                continue
            for name in _names(other):
                own = mine.get(_typed(name))
                if own and (own != a.meta.title or name == other.meta.title):
                    line = a.field_lines.get("aliases", 1)
                    shown = other.path.relative_to(self.book.root)
                    what = f'the name "{own}" is one of {shown} too'
                    yield self.at(a, line, what, "leave it on the page it fits best")

    def _wording(self, a: Answer, line: int) -> Iterator[Problem]:
        wanted = self.book.wanted.get(a.slug)
        if not wanted:
            return
        for name in wanted.asked:
            if name not in a.meta.asked:
                what = f'asked id "{name}" is missing'
                yield self.at(a, line, what, f"add {name} to `asked`")
        for code in LANGUAGES:
            if getattr(a.meta.question, code) != getattr(wanted.question, code):
                what = f"question.{code} differs from docs/questions.yml"
                fix = f"write: {getattr(wanted.question, code)}"
                at = a.field_lines.get(f"question.{code}", 1)
                yield self.at(a, at, what, fix)

    def builds_on(self, a: Answer) -> Iterator[Problem]:
        """What a page builds on exists and leads to no cycle."""
        line = a.field_lines.get("builds_on", 1)
        for slug in a.meta.builds_on:
            if slug not in self.book.answers:
                near = nearest(slug, self.book.answers)
                what = f'builds_on "{slug}" is not an answer.{near}'
                yield self.at(a, line, what, "use the file name, without .md")
        cycle = self._cycle(a.slug)
        if cycle and a.slug == min(cycle):
            what = f"builds_on goes in a circle: {' → '.join(cycle)}"
            yield self.at(a, line, what, "drop one of these")

    def _cycle(self, start: str) -> list[str]:
        todo = [[start]]
        while todo:
            path = todo.pop()
            answer = self.book.sound.get(path[-1])
            for slug in answer.meta.builds_on if answer else ():
                if slug == start:
                    return [*path, slug]
                if slug not in path:
                    todo.append([*path, slug])
        return []

    def links(self, a: Answer) -> Iterator[Problem]:
        """A link between answers leads to a page that exists."""
        for link in a.links:
            target = a.path.parent / link.target.partition("#")[0]
            path = Path(os.path.normpath(target))
            docs = self.book.root / "docs"
            generated = docs in path.parents and path.relative_to(docs).parts[0] in (
                "questions",
                "lists",
                "tags",
                "reference",
                "paths",
            )
            if not path.exists() and not generated:
                paths = {
                    os.path.relpath(other.path, a.path.parent)
                    for other in self.book.answers.values()
                }
                near = nearest(link.target, paths)
                what = f'link to "{link.target}", which does not exist.{near}'
                fix = "link to a finished answer, or write plain text"
                yield self.at(a, link.line, what, fix)

    def sources(self, a: Answer) -> Iterator[Problem]:
        """`sources` lists each cited key once, and no other."""
        line = a.field_lines.get("sources", 1)
        known, listed = self.book.sources, a.meta.sources
        for key in sorted({k for k in listed if listed.count(k) > 1}):
            what = f'source "{key}" is listed twice'
            yield self.at(a, line, what, "run `make check FIX=1`")
        cited = {}
        for citation in a.citations:
            cited.setdefault(citation.key, citation.line)
        for key, at in cited.items():
            if key not in known:
                near = nearest(key, known)
                what = f'source "{key}" is not in docs/references.bib.{near}'
                yield self.at(a, at, what, f"add @article{{{key}, ...}} to it")
            elif key not in listed:
                what = f'source "{key}" is cited but not listed'
                yield self.at(a, at, what, "run `make check FIX=1`")
        for key in listed:
            if key not in cited:
                what = f'source "{key}" is listed but never cited'
                fix = f"cite it as [@{key}], or run `make check FIX=1`"
                yield self.at(a, line, what, fix)

    def form(self, a: Answer) -> Iterator[Problem]:
        """The page has its parts, in order, each with what it must hold."""
        for name in PARTS:
            if name not in a.parts and name != OPTIONAL:
                near = nearest(name, a.parts)
                what = f'no part "## {name}".{near}'
                yield self.at(a, a.body_line, what, "see CONTRIBUTING.md")
        have = [name for name in a.parts if name in PARTS]
        if have != sorted(have, key=PARTS.index):
            what = f"parts out of order: {', '.join(have)}"
            fix = f"the order is {', '.join(PARTS)}"
            yield self.at(a, a.parts[have[0]][0], what, fix)
        if "Short answer" in a.parts:
            for code, name in LANGUAGES.items():
                if code not in a.short_answer:
                    what = f'the short answer has no tab "{name}"'
                    fix = f'add === "{name}" and an indented text'
                    yield self.at(a, a.parts["Short answer"][0], what, fix)
        yield from self._counts(a)

    def _counts(self, a: Answer) -> Iterator[Problem]:
        shown = [e for e in a.embeds if e.product]
        for name, count, low, high, fix in (
            (PARTS[2], len(a.wrong_answers), 2, 99, '!!! wrong "statement"'),
            (PARTS[3], len(a.follow_ups), 4, 6, '??? question "question"'),
            (PARTS[4], len(a.key_points), 4, 8, "- one key point"),
        ):
            if name in a.parts and not low <= count <= high:
                need = f"{low} to {high}" if high < 99 else f"at least {low}"
                what = f'"{name}" has {count} entries, needs {need}'
                yield self.at(a, a.parts[name][0], what, f"write each as {fix}")
        if not shown:
            what = "the page shows no figure and no table made by the build"
            fix = "embed a figure_, table_ or report_ function of its snippet"
            yield self.at(a, a.body_line, what, fix)

    def embeds(self, a: Answer) -> Iterator[Problem]:
        """What a page embeds exists."""
        for embed in a.embeds:
            product = embed.product
            name = product["module"] if product else embed.path.removesuffix(".py")
            module = self.modules.get(name)
            if not module:
                near = nearest(name, self.modules)
                what = f'no snippet "{name}".{near}'
                fix = f"create snippets/{name}.py, or correct the name"
                yield self.at(a, embed.line, what, fix)
            elif product:
                yield from self._product(a, embed.line, module, product)
            elif embed.section not in module.sections:
                near = nearest(embed.section, module.sections)
                what = f'{name}.py has no section "{embed.section}".{near}'
                have = ", ".join(module.sections) or "none"
                fix = f"use one of: {have}; or mark [start:…] and [end:…]"
                yield self.at(a, embed.line, what, fix)

    def _product(
        self, a: Answer, line: int, module: Module, product: re.Match
    ) -> Iterator[Problem]:
        function, kind = product["function"], product["kind"]
        if function not in module.functions:
            near = nearest(function, module.products)
            what = f"{module.name}.py has no function {function}().{near}"
            yield self.at(a, line, what, f"write {function}() in the snippet")
        elif KINDS.get(function.partition("_")[0]) != kind:
            what = f"{function}() does not make .{kind}"
            fix = "figure_… makes .svg, table_… .md, report_… .txt"
            yield self.at(a, line, what, fix)

    def formulas(self, answers: list[Answer]) -> Iterator[Problem]:
        """KaTeX accepts every formula; a display fits its column."""
        found = [(a, *formula) for a in answers for formula in a.formulas]
        rendered = tex.render(sorted({(t, d) for _, _, t, d in found}))
        for a, line, text, display in found:
            error = rendered[text, display].get("error")
            if error:
                error = " ".join(error.removeprefix("KaTeX parse error: ").split())
                what = f"bad TeX: {error}"
                yield self.at(a, line, what, "correct the formula")
            elif display and rendered[text, display]["width"] > tex.COLUMN:
                wide = rendered[text, display]["width"]
                what = f"formula {wide:.0f} em wide, the column has {tex.COLUMN}"
                fix = "break it: two displays, or \\begin{aligned} … \\\\ …"
                yield self.at(a, line, what, fix)

    def images(self, a: Answer) -> Iterator[Problem]:
        """Every image says in words what it shows."""
        for line, alt, target in a.images:
            if len(alt) < 15:
                what = f"image {target} has no alternative text"
                fix = "write ![What is seen, in a sentence.](…)"
                yield self.at(a, line, what, fix)
            if not PRODUCT.fullmatch(target):
                what = f"image {target} is not made by the build"
                fix = "write section/module.figure_name.svg"
                yield self.at(a, line, what, fix)

    def dated(self, a: Answer) -> Iterator[Problem]:
        """`checked` is not in the future."""
        if a.meta.checked > self.today:
            what = f"checked {a.meta.checked} is in the future"
            fix = f"use today, {self.today}, or the day it was checked"
            yield self.at(a, a.field_lines.get("checked", 1), what, fix)

    def unfinished(self, a: Answer) -> Iterator[Problem]:
        """No TODO is left on a page."""
        yield from self._todos(str(a.path.relative_to(self.book.root)))

    def _todos(self, file: str) -> Iterator[Problem]:
        text = (self.book.root / file).read_text(encoding="utf-8")
        for m in TODO.finditer(text):
            line = prose.line_at(text, m.start())
            yield Problem(file, line, "TODO", "write what is missing")

    def snippets(self) -> Iterator[Problem]:
        """Every module is shown by a page or used by another, and tested."""
        used = {
            (e.product["module"] if e.product else e.path.removesuffix(".py"))
            for a in self.book.answers.values()
            for e in a.embeds
        }
        for module in self.modules.values():
            used |= {m.name for m in module.imports(self.book.root)}
        for name, module in self.modules.items():
            path = f"snippets/{name}.py"
            section, _, stem = name.partition("/")
            if error := module.error:
                what = f"not Python: {error.msg}"
                yield Problem(path, error.lineno or 1, what, "correct the code")
            if name not in used:
                what = "no page shows this module and no module imports it"
                fix = f"embed a section in docs/{section}/{stem.replace('_', '-')}.md"
                yield Problem(path, 1, what, fix)
            test = f"tests/snippets/{section}/test_{stem}.py"
            if not (self.book.root / test).exists():
                yield Problem(path, 1, "this module has no test", f"write {test}")
            for file in (path, test):
                if (self.book.root / file).exists():
                    yield from self._todos(file)

    def unused_sources(self) -> Iterator[Problem]:
        """Every work in the bibliography is cited by a page."""
        cited = {c.key for a in self.book.answers.values() for c in a.citations}
        for key, source in self.book.sources.items():
            if key not in cited:
                what = f'no page cites "{key}"'
                fix = f"cite it as [@{key}], or remove the entry"
                yield Problem("docs/references.bib", source.line, what, fix)

    def signs(self, a: Answer) -> Iterator[Problem]:
        """A minus sign is one, not a hyphen."""
        for position in prose.minus_signs(a.body):
            word = re.match(r"-[\d.,]*\d", a.body[position:])[0]
            what = f'hyphen for a minus sign: "{word}"'
            fix = f'write "−{word[1:]}", or run `make check FIX=1`'
            yield self.at(a, a.line(position), what, fix)

    def gone(self) -> Iterator[Problem]:
        """An answer that was finished once keeps its page."""
        for number, slug in enumerate(_finished(self.book.root), 1):
            if slug not in self.book.answers:
                what = f'the answer "{slug}" has gone'
                fix = "bring the page back; published answers stay"
                yield Problem(ANSWERED, number, what, fix)


def _finished(root: Path) -> list[str]:
    path = root / ANSWERED
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def run(book: Book, today: date | None = None) -> list[Problem]:
    """Every problem in the book; only the plan's when that cannot be read."""
    if not book.plan.usable:
        return sorted(set(book.problems))
    check = Check(book, today or date.today())
    problems = list(book.problems)
    answers = list(book.answers.values())
    for a in answers:
        problems += check.place(a)
        for one in ("links", "form", "embeds", "images", "signs", "unfinished"):
            problems += getattr(check, one)(a)
        if a.meta:
            for one in ("asked", "names", "builds_on", "sources", "dated"):
                problems += getattr(check, one)(a)
    problems += check.formulas(answers)
    problems += check.snippets()
    problems += check.unused_sources()
    problems += check.gone()
    return sorted(set(problems))


def fix(book: Book) -> list[str]:
    """Repair what needs no thought; return what was changed."""
    done = []
    bib = book.root / "docs" / "references.bib"
    if bibliography.sort(bib):
        done.append("docs/references.bib: sorted")
    for a in book.answers.values():
        old = a.path.read_text(encoding="utf-8")
        new = old.removesuffix(a.body) + prose.with_minus_signs(a.body)
        what = ["minus signs"] if new != old else []
        keys = sorted({c.key for c in a.citations})
        if a.meta and keys and keys != a.meta.sources:
            new = _with_sources(new, keys)
            what = ["sources", *what]
        if what:
            a.path.write_text(new, encoding="utf-8")
            done.append(f"{a.path.relative_to(book.root)}: {', '.join(what)}")
    listed = _finished(book.root)
    new_ones = {s for s, a in book.sound.items() if not TODO.search(a.body)}
    if more := sorted(new_ones - set(listed)):
        lines = "\n".join(sorted({*listed, *more}))
        (book.root / ANSWERED).write_text(lines + "\n", encoding="utf-8")
        done.append(f"{ANSWERED}: {len(more)} more")
    return done


def _with_sources(text: str, keys: list[str]) -> str:
    """A page with its list of sources written anew."""
    block = r"^sources:.*\n(?:[ \t]*-.*\n|[ \t]+.*\n)*"
    line = f"sources: [{', '.join(keys)}]\n"
    return re.sub(block, lambda _: line, text, count=1, flags=re.M)
