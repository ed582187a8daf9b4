"""docs/questions.yml and docs/book.yml: every message, and how the book grows."""

import subprocess
import sys

import pytest

from scripts import ROOT, checks, new, pages
from scripts.plan import Place, asked_id, read
from tests import books

BOOK, QUESTIONS = "docs/book.yml", "docs/questions.yml"
STOPPED = (
    f"{BOOK}:1: no page was checked, since the plan cannot be read\n"
    f"    fix: first repair what is named of {BOOK} and {QUESTIONS}"
)
FORM = "    fix: write it as the other entries of "


@pytest.fixture
def root(tmp_path):
    return books.make(tmp_path)


# (what is wrong, file, old text, new text, the whole message)
UNREADABLE = [
    (
        "not YAML",
        QUESTIONS,
        "asked: [A1],",
        "asked: [A1,",
        f"{QUESTIONS}:3: the file is not YAML: expected ',' or ']', but got '}}'\n"
        "    fix: quote texts that hold a colon, and indent lists evenly",
    ),
    (
        "a list in place of sections",
        QUESTIONS,
        books.QUESTIONS,
        "- policy\n",
        f"{QUESTIONS}:1: the file: input should be a valid dictionary\n"
        f"{FORM}{QUESTIONS}",
    ),
    (
        "a section without a list",
        QUESTIONS,
        books.QUESTIONS,
        "policy: many\n",
        f'{QUESTIONS}:1: section "policy": input should be a valid list\n'
        f"{FORM}{QUESTIONS}",
    ),
    (
        "a section twice",
        QUESTIONS,
        "rewards:",
        "policy:",
        f'{QUESTIONS}:6: "policy" stands twice, on line 1 too\n'
        "    fix: leave one, with all its entries",
    ),
    (
        "a language that is missing",
        QUESTIONS,
        'zh: "第一？", ',
        "",
        f'{QUESTIONS}:2: question "first-thing" has no "zh"\n'
        "    fix: add a line `zh: …`",
    ),
    (
        "a question without a slug",
        QUESTIONS,
        "slug: second-thing, ",
        "",
        f'{QUESTIONS}:4: question 2 of "policy" has no "slug"\n'
        "    fix: add a line `slug: …`",
    ),
    (
        "a field nobody knows",
        QUESTIONS,
        "{slug: third-thing, asked:",
        "{slug: third-thing, aksed: [], asked:",
        f'{QUESTIONS}:7: question "third-thing" has an unknown field "aksed". Did '
        'you mean "asked"?\n    fix: use one of en, zh, vi, slug, asked',
    ),
    (
        "a field of the wrong type",
        QUESTIONS,
        "asked: [B2]",
        "asked: B2",
        f'{QUESTIONS}:7: "asked" of question "third-thing": input should be a valid '
        f"list\n{FORM}{QUESTIONS}",
    ),
    (
        "a question that is no mapping",
        QUESTIONS,
        "rewards:",
        "rewards:\n  - third",
        f'{QUESTIONS}:7: question 1 of "rewards": input should be a valid dictionary '
        f"or instance of Question\n{FORM}{QUESTIONS}",
    ),
    (
        "an unknown path",
        BOOK,
        "path: algorithms",
        "path: algorithm",
        f'{BOOK}:2: unknown path "algorithm" of section "policy". Did you mean '
        '"algorithms"?\n    fix: use one of algorithms, infrastructure',
    ),
    (
        "a section without a title",
        BOOK,
        "title: Rewards, ",
        "",
        f'{BOOK}:3: section "rewards" has no "title"\n    fix: add a line `title: …`',
    ),
    (
        "a list without parts",
        BOOK,
        "    parts: {A: {title: One, questions: 2}, B: {title: Two}}\n",
        "",
        f'{BOOK}:5: list "asked" has no "parts"\n    fix: add a line `parts: …`',
    ),
    (
        "a number of questions that is none",
        BOOK,
        "questions: 2",
        "questions: two",
        f'{BOOK}:8: "questions" of part "A" of list "asked": input should be a valid '
        f"integer, unable to parse string as an integer\n{FORM}{BOOK}",
    ),
    (
        "an unknown field of the plan",
        BOOK,
        "lists:",
        "list:",
        f'{BOOK}:4: the plan has an unknown field "list". Did you mean "lists"?\n'
        "    fix: use one of sections, lists",
    ),
    (
        "a file that refers to itself",
        BOOK,
        books.PLAN,
        "&a [*a]\n",
        f"{BOOK}:1: the file is not YAML: it refers to itself\n"
        "    fix: quote texts that hold a colon, and indent lists evenly",
    ),
]


@pytest.mark.parametrize(
    "file, old, new, message", [pytest.param(*c[1:], id=c[0]) for c in UNREADABLE]
)
def test_a_plan_that_cannot_be_read_stops_the_check(root, file, old, new, message):
    books.edit(root / "docs/policy/first-thing.md", "asked: [A1]", "asked: [A9]")
    books.edit(root / file, old, new)
    found = books.said(root)
    assert message in found and STOPPED in found
    assert not [one for one in found if "first-thing.md" in one]


def test_a_plan_that_is_gone_or_not_text(root):
    (root / BOOK).unlink()
    (root / QUESTIONS).write_bytes(b"\xff")
    assert books.said(root) == [
        f"{BOOK}:1: cannot read it: No such file or directory\n"
        "    fix: bring the file back",
        STOPPED,
        f"{QUESTIONS}:1: cannot read it: it is not UTF-8\n    fix: bring the file back",
    ]


WRONG = [
    (
        "an unknown section",
        QUESTIONS,
        "rewards:",
        "reward:",
        f'{QUESTIONS}:6: unknown section "reward". Did you mean "rewards"?\n'
        f"    fix: use one of policy, rewards, or add it to {BOOK}",
    ),
    (
        "a slug that is none",
        QUESTIONS,
        "slug: third-thing",
        "slug: Third_thing",
        f'{QUESTIONS}:7: "Third_thing" is not a slug\n'
        "    fix: use lower-case words joined by hyphens",
    ),
    (
        "a slug twice",
        QUESTIONS,
        "slug: third-thing",
        "slug: first-thing",
        f'{QUESTIONS}:7: slug "first-thing" is used on line 2 too\n'
        "    fix: choose another; a slug is unique in the book",
    ),
    (
        "an asked id on two questions",
        QUESTIONS,
        "asked: [B2]",
        "asked: [B2, A1]",
        f'{QUESTIONS}:7: asked id "A1" belongs to "first-thing" already\n'
        "    fix: leave the id on one question",
    ),
    (
        "an asked id that no list has",
        QUESTIONS,
        "asked: [B2]",
        "asked: [B2, D7]",
        f'{QUESTIONS}:7: no list has the asked id "D7".\n'
        f"    fix: ids start as in A1, B1; a new list goes into {BOOK}",
    ),
    (
        "an asked id written in another way",
        QUESTIONS,
        "asked: [B2]",
        "asked: [B2, B.1]",
        f'{QUESTIONS}:7: no list has the asked id "B.1". Did you mean "B1"?\n'
        f"    fix: ids start as in A1, B1; a new list goes into {BOOK}",
    ),
    (
        "a number too high",
        QUESTIONS,
        "asked: [B2]",
        "asked: [B2, B22]",
        f'{QUESTIONS}:7: asked id "B22" leaves a gap: B3 is not asked\n'
        "    fix: use B3, or add the questions between",
    ),
    (
        "a question that is missing between others",
        QUESTIONS,
        "asked: [A2, B1]",
        "asked: [A2]",
        f'{QUESTIONS}:7: asked id "B2" leaves a gap: B1 is not asked\n'
        "    fix: use B1, or add the questions between",
    ),
    (
        "a question that the list surely has",
        QUESTIONS,
        "asked: [A2, B1]",
        "asked: [B1]",
        f'{BOOK}:8: list "asked" has A1 to A2; not asked: A2\n'
        f"    fix: add the question to {QUESTIONS}, or correct an id there",
    ),
    (
        "a section that is no folder of code",
        BOOK,
        "rewards:",
        "re-wards:",
        f'{BOOK}:3: section "re-wards" cannot be the name of a folder of code\n'
        "    fix: use lower-case letters and _",
    ),
    (
        "a list that is no slug",
        BOOK,
        "  asked:\n",
        "  Asked:\n",
        f'{BOOK}:5: list "Asked" is not a slug\n'
        "    fix: use lower-case words joined by hyphens",
    ),
    (
        "a letter that is none",
        BOOK,
        "B: {title: Two}",
        "b: {title: Two}",
        f'{BOOK}:8: no asked id can start with "b"\n'
        "    fix: use capital letters, as A or C1",
    ),
    (
        "a letter of two lists",
        BOOK,
        "lists:\n",
        "lists:\n  old: {title: Old, short: Old, parts: {A: {title: Old}}}\n",
        f'{BOOK}:9: "A" is a part of list "old" too\n    fix: use another letter',
    ),
]


@pytest.mark.parametrize(
    "file, old, new, message", [pytest.param(*c[1:], id=c[0]) for c in WRONG]
)
def test_a_plan_that_is_wrong_is_told_with_the_pages(root, file, old, new, message):
    books.edit(root / "docs/policy/first-thing.md", "checked: 2026", "checked: 2027")
    books.edit(root / file, old, new)
    found = books.said(root)
    assert message in found
    assert [one for one in found if "is in the future" in one]


def test_every_problem_of_the_plan_comes_in_one_run(root):
    books.edit(root / QUESTIONS, "rewards:", "reward:")
    books.edit(root / QUESTIONS, "slug: third-thing", "slug: first-thing")
    books.edit(root / QUESTIONS, "asked: [B2]", "asked: [D1, A1]")
    lines = [one.partition(": ")[0] for one in books.said(root) if QUESTIONS in one]
    assert lines == [f"{QUESTIONS}:{n}" for n in (6, 7, 7, 7)]


def test_where_an_asked_id_belongs(root):
    books.edit(root / BOOK, "{title: Two}", "{title: Two}, B1: {title: Three}")
    plan = read(root)
    assert plan.place("B12") == Place("asked", "B", 12)
    assert plan.place("B1.2") == Place("asked", "B1", 2)
    assert [plan.place(name) for name in ("B", "B1.", "B.2", "C1", "b1")] == [None] * 5
    assert [asked_id("B", 12), asked_id("B1", 2)] == ["B12", "B1.2"]


def write(root, slug):
    """The page of a slug, finished."""
    for path, text in new.files(books.book(root), slug, books.TODAY).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("[TODO", f"[{slug}").replace("TODO", "Text"))


def test_a_question_is_added_by_one_entry(root):
    entry = '  - {slug: new-thing, asked: [B3], en: "New?", zh: "新的？", vi: "Mới?"}\n'
    text = (root / QUESTIONS).read_text()
    (root / QUESTIONS).write_text(text + entry)
    assert books.said(root) == []
    book = books.book(root)
    assert book.unanswered == ["third-thing", "new-thing"]
    listed = pages.generated(book)
    assert 'id="b3"' in listed["lists/asked.md"]
    assert "## Two (B1–B3)" in listed["lists/asked.md"]
    assert "3 of 5 answered" in listed["lists/asked.md"]
    assert "5 asked questions on 4 pages; 2 of 4 answered" in listed["questions.md"]
    assert "0 of 2 answered" in listed["rewards/index.md"]
    assert (pages.shell(book)["pages"], pages.shell(book)["asked"]) == (4, 5)
    write(root, "new-thing")
    assert books.said(root) == []
    assert books.book(root).unanswered == ["third-thing"]
    assert "4 of 5 answered" in pages.generated(books.book(root))["lists/asked.md"]


def test_a_question_of_no_list_is_added_by_one_entry(root):
    entry = '  - {slug: new-thing, asked: [], en: "New?", zh: "新的？", vi: "Mới?"}\n'
    text = (root / QUESTIONS).read_text()
    (root / QUESTIONS).write_text(text + entry)
    write(root, "new-thing")
    assert books.said(root) == []
    assert "New?" in pages.generated(books.book(root))["rewards/index.md"]


def test_a_list_is_added_by_one_entry_and_its_questions(root):
    added = "  late: {title: Late list, short: Late, parts: {D2: {title: All}}}\n"
    (root / BOOK).write_text((root / BOOK).read_text() + added)
    books.edit(root / QUESTIONS, "asked: [B2]", "asked: [B2, D2.1]")
    assert books.said(root) == []
    book = books.book(root)
    page = pages.generated(book)["lists/late.md"]
    assert page.startswith("# Late list\n\n0 of 1 answered.")
    assert 'id="d2-1"' in page and '<span class="number">D2.1</span>' in page
    assert {"Late": "lists/late.md"} in pages.navigation(book)[1]["Questions"]
    write(root, "third-thing")
    assert books.said(root) == []
    book = books.book(root)
    assert 'href="../../lists/late/#d2-1"' in pages.head(
        book, book.answers["third-thing"]
    )


def test_commands_stop_cleanly_on_a_plan_that_cannot_be_read(root):
    """`make check`, `make new` and `make shared`, as each is run."""
    books.edit(root / QUESTIONS, "asked: [A1],", "asked: [A1,")
    (root / "scripts").symlink_to(ROOT / "scripts")
    for command in ("catalog", "new", "shared"):
        run = subprocess.run(
            [sys.executable, "-c", RUN.format(root=str(root), command=command)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 1
        assert STOPPED in run.stderr and "Traceback" not in run.stderr


RUN = """
import pathlib, sys, scripts
scripts.ROOT = pathlib.Path({root!r})
from scripts import {command} as command
sys.argv[1:] = []
sys.exit(command.main())
"""


def test_the_list_of_answers_needs_no_edit_for_a_question(root):
    (root / checks.ANSWERED).unlink()
    assert books.said(root) == []
