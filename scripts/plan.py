"""The book's plan: its sections, the lists that asked, every question asked.

Read from docs/book.yml and docs/questions.yml. How many questions a list has,
which have no answer and what an asked id looks like is derived from these two.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field

from scripts import schema
from scripts.problems import Problem, nearest
from scripts.schema import Document, Strict

BOOK, QUESTIONS = "docs/book.yml", "docs/questions.yml"
SLUG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
FOLDER = re.compile(r"[a-z][a-z_]*")
LETTER = re.compile(r"[A-Z]+\d*")
ASKED = re.compile(r"(?P<letter>[A-Z]+(?:\d+\.)?)(?P<number>[1-9]\d*)")
"""An asked id: A7, or C1.7 where the letter itself ends in a digit."""


class Wording(Strict):
    """One question in the three languages."""

    en: str = Field(min_length=3)
    zh: str = Field(min_length=2)
    vi: str = Field(min_length=3)


class Question(Wording):
    """An entry of docs/questions.yml."""

    slug: str
    asked: list[str]


class Section(Strict):
    """A section of docs/book.yml; one without a path is on no reading path."""

    title: str = Field(min_length=2)
    path: Literal["algorithms", "infrastructure"] | None = None


class Part(Strict):
    """A part of a list: what it is called, how many questions it surely has."""

    title: str = Field(min_length=2)
    questions: int = Field(0, ge=0)


class Asking(Strict):
    """A list of docs/book.yml, its parts by the letter that their ids start with."""

    title: str = Field(min_length=2)
    short: str = Field(min_length=2)
    parts: dict[str, Part] = Field(min_length=1)


class Outline(Strict):
    """All of docs/book.yml."""

    sections: dict[str, Section] = Field(min_length=1)
    lists: dict[str, Asking]


@dataclass(frozen=True)
class Wanted:
    """A question that was asked, answered or not."""

    slug: str
    section: str
    asked: tuple[str, ...]
    question: Wording


@dataclass(frozen=True)
class Place:
    """Where an asked id belongs."""

    list_id: str
    letter: str
    number: int


@dataclass(frozen=True)
class Plan:
    """Sections and lists by name, questions by slug, what is wrong with them.

    A plan that cannot be read is not usable: it is empty, `problems` say why.
    """

    sections: dict[str, dict] = field(default_factory=dict)
    lists: dict[str, dict] = field(default_factory=dict)
    wanted: dict[str, Wanted] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    usable: bool = True

    @cached_property
    def letters(self) -> dict[str, str]:
        """The list that each letter belongs to."""
        return {k: name for name, one in self.lists.items() for k in one["parts"]}

    def place(self, asked: str) -> Place | None:
        """Where "C1.7" belongs: number 7 of C1; None if to no list."""
        found = ASKED.fullmatch(asked)
        letter = found["letter"].rstrip(".") if found else ""
        if letter not in self.letters:
            return None
        return Place(self.letters[letter], letter, int(found["number"]))

    @cached_property
    def parts(self) -> dict[str, dict[int, tuple[str, Wanted]]]:
        """By letter and number, in order: the asked id and its question."""
        found = {letter: {} for letter in self.letters}
        for wanted in self.wanted.values():
            for asked in wanted.asked:
                if place := self.place(asked):
                    found[place.letter][place.number] = asked, wanted
        return {k: dict(sorted(numbers.items())) for k, numbers in found.items()}


def asked_id(letter: str, number: int) -> str:
    """The asked id of a number: "C1.7" of C1 and 7, "A7" of A and 7."""
    return f"{letter}{'.' if letter[-1].isdigit() else ''}{number}"


def read(root: Path) -> Plan:
    """The plan of the book in a folder; never an exception."""
    book, asked = _document(root, BOOK), _document(root, QUESTIONS)
    form = f"write it as the other entries of {BOOK}"
    outline, problems = schema.validate(book, Outline, _entry_of_book, form)
    form = f"write it as the other entries of {QUESTIONS}"
    kind = dict[str, list[Question]]
    entries, more = schema.validate(asked, kind, _entry_of_questions, form)
    problems += more
    if problems:
        what = "no page was checked, since the plan cannot be read"
        fix = f"first repair what is named of {BOOK} and {QUESTIONS}"
        return Plan(problems=[*problems, Problem(BOOK, 1, what, fix)], usable=False)
    wanted: dict[str, Wanted] = {}
    for section, questions in entries.items():
        for q in questions:
            words = Wording(en=q.en, zh=q.zh, vi=q.vi)
            wanted.setdefault(q.slug, Wanted(q.slug, section, tuple(q.asked), words))
    whole = outline.model_dump()
    plan = Plan(whole["sections"], whole["lists"], wanted)
    plan.problems.extend(_names(plan, book))
    plan.problems.extend(_questions(plan, entries, asked))
    plan.problems.extend(_ids(plan, entries, asked))
    plan.problems.extend(_gaps(plan, entries, book, asked))
    return plan


def _document(root: Path, name: str) -> Document:
    try:
        text = (root / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is not UTF-8"
        problem = Problem(name, 1, f"cannot read it: {said}", "bring the file back")
        return Document(name, {}, {}, [problem])
    return schema.read(text, name)


def _entry_of_book(path: schema.Path, _) -> tuple[str, type, int]:
    """The section, list or part of a list that a path of book.yml leads to."""
    if path[:1] == ("sections",) and len(path) > 1:
        return f'section "{path[1]}"', Section, 2
    if path[:1] == ("lists",) and len(path) > 3 and path[2] == "parts":
        return f'part "{path[3]}" of list "{path[1]}"', Part, 4
    if path[:1] == ("lists",) and len(path) > 1:
        return f'list "{path[1]}"', Asking, 2
    return "the plan", Outline, 0


def _entry_of_questions(path: schema.Path, data) -> tuple[str, type, int]:
    """The question, or section of questions, that a path leads to."""
    if len(path) < 2:
        label = f'section "{path[0]}"' if path else "the file"
        return label, Question, len(path)
    section, number = path[:2]
    entry = data[section][number]
    slug = entry.get("slug") if isinstance(entry, dict) else None
    name = f'"{slug}"' if slug else f'{number + 1} of "{section}"'
    return f"question {name}", Question, 2


def _names(plan: Plan, book: Document) -> Iterator[Problem]:
    """Names of sections, lists and letters have their form; a letter has one list."""
    owner: dict[str, str] = {}
    for section in plan.sections:
        if not FOLDER.fullmatch(section):
            what = f'section "{section}" cannot be the name of a folder of code'
            fix = "use lower-case letters and _"
            yield Problem(BOOK, book.line("sections", section), what, fix)
    for name, one in plan.lists.items():
        if not SLUG.fullmatch(name):
            what = f'list "{name}" is not a slug'
            fix = "use lower-case words joined by hyphens"
            yield Problem(BOOK, book.line("lists", name), what, fix)
        for letter in one["parts"]:
            line = book.line("lists", name, "parts", letter)
            if not LETTER.fullmatch(letter):
                what = f'no asked id can start with "{letter}"'
                yield Problem(BOOK, line, what, "use capital letters, as A or C1")
            if letter in owner:
                what = f'"{letter}" is a part of list "{owner[letter]}" too'
                yield Problem(BOOK, line, what, "use another letter")
            owner.setdefault(letter, name)


Entries = dict[str, list[Question]]


def _questions(plan: Plan, entries: Entries, asked: Document) -> Iterator[Problem]:
    """Each question is in a section and has a slug of its own."""
    lines: dict[str, int] = {}
    for section, questions in entries.items():
        if section not in plan.sections:
            what = f'unknown section "{section}".{nearest(section, plan.sections)}'
            fix = f"use one of {', '.join(plan.sections)}, or add it to {BOOK}"
            yield Problem(QUESTIONS, asked.line(section), what, fix)
        for number, q in enumerate(questions):
            line = asked.line(section, number, "slug")
            if not SLUG.fullmatch(q.slug):
                what = f'"{q.slug}" is not a slug'
                fix = "use lower-case words joined by hyphens"
                yield Problem(QUESTIONS, line, what, fix)
            if q.slug in lines:
                what = f'slug "{q.slug}" is used on line {lines[q.slug]} too'
                fix = "choose another; a slug is unique in the book"
                yield Problem(QUESTIONS, line, what, fix)
            lines.setdefault(q.slug, line)


def _ids(plan: Plan, entries: Entries, asked: Document) -> Iterator[Problem]:
    """Each asked id belongs to a list and to one question."""
    owner: dict[str, str] = {}
    sound = [n for n, _, _ in _asked(entries, asked) if plan.place(n)]
    for name, slug, line in _asked(entries, asked):
        if not plan.place(name):
            what = f'no list has the asked id "{name}".{nearest(name, sound)}'
            known = ", ".join(asked_id(letter, 1) for letter in plan.letters)
            fix = f"ids start as in {known}; a new list goes into {BOOK}"
            yield Problem(QUESTIONS, line, what, fix)
        if name in owner:
            what = f'asked id "{name}" belongs to "{owner[name]}" already'
            yield Problem(QUESTIONS, line, what, "leave the id on one question")
        owner.setdefault(name, slug)


def _gaps(
    plan: Plan, entries: Entries, book: Document, asked: Document
) -> Iterator[Problem]:
    """No question of a list is forgotten, and no number is too high."""
    lines = {name: line for name, _, line in _asked(entries, asked)}
    for letter, numbers in plan.parts.items():
        name = plan.letters[letter]
        surely = plan.lists[name]["parts"][letter]["questions"]
        if gone := [n for n in range(1, surely + 1) if n not in numbers]:
            ids = ", ".join(asked_id(letter, n) for n in gone)
            first, last = asked_id(letter, 1), asked_id(letter, surely)
            what = f'list "{name}" has {first} to {last}; not asked: {ids}'
            fix = f"add the question to {QUESTIONS}, or correct an id there"
            line = book.line("lists", name, "parts", letter, "questions")
            yield Problem(BOOK, line, what, fix)
        for n, (shown, _) in numbers.items():
            if n > surely + 1 and n - 1 not in numbers:
                below = max((m for m in numbers if m < n), default=0)
                free = asked_id(letter, max(below, surely) + 1)
                what = f'asked id "{shown}" leaves a gap: {free} is not asked'
                fix = f"use {free}, or add the questions between"
                yield Problem(QUESTIONS, lines[shown], what, fix)


def _asked(entries: Entries, asked: Document) -> Iterator[tuple[str, str, int]]:
    """(asked id, slug, line) of each id, in order."""
    for section, questions in entries.items():
        for number, q in enumerate(questions):
            for i, name in enumerate(q.asked):
                yield name, q.slug, asked.line(section, number, "asked", i)
