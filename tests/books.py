"""A small sound book in a folder of its own, for tests that break it."""

from datetime import date
from pathlib import Path

from scripts import checks, new
from scripts.catalog import Book, load
from scripts.problems import Problem

TODAY = date(2026, 11, 30)
QUESTIONS = """\
policy:
  - {slug: first-thing, asked: [A1],
     en: "What is first?", zh: "第一？", vi: "Thứ nhất?"}
  - {slug: second-thing, asked: [A2, B1],
     en: "What is second?", zh: "第二？", vi: "Thứ hai?"}
rewards:
  - {slug: third-thing, asked: [B2], en: "What is third?", zh: "第三？", vi: "Thứ ba?"}
"""
PLAN = """\
sections:
  policy: {title: Policy, path: algorithms}
  rewards: {title: Rewards, path: infrastructure}
lists:
  asked:
    title: The list
    short: List
    parts: {A: {title: One, questions: 2}, B: {title: Two}}
"""
BIBLIOGRAPHY = """\
@article{smith2020, author = {Smith, Ann}, title = {A Title}, year = {2020}, \
url = {https://example.org/a}}
"""


def make(root: Path) -> Path:
    """A book with two answers, the second linking to the first."""
    docs = root / "docs"
    (root / "tests" / "contracts").mkdir(parents=True)
    docs.mkdir()
    (docs / "questions.yml").write_text(QUESTIONS, encoding="utf-8")
    (docs / "book.yml").write_text(PLAN, encoding="utf-8")
    (docs / "references.bib").write_text(BIBLIOGRAPHY, encoding="utf-8")
    (root / checks.ANSWERED).write_text("first-thing\nsecond-thing\n")
    snippets = root / "snippets"
    snippets.mkdir()
    for name in ("__init__.py", "show.py"):
        text = (Path("snippets") / name).read_text(encoding="utf-8")
        (snippets / name).write_text(text, encoding="utf-8")
    for slug in ("first-thing", "second-thing"):
        for path, text in new.files(load(root), slug, TODAY).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            text = text.replace("[TODO", f"[{slug}").replace("TODO", "Text")
            path.write_text(text, encoding="utf-8")
    edit(
        root / "docs/policy/second-thing.md",
        "## Where the setting",
        "See [the first](first-thing.md) and $x^2$.\n\n## Where the setting",
    )
    return root


def edit(path: Path, old: str, new_: str, times: int = 1) -> None:
    """Replace a text that must be there."""
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{old!r} is not in {path}"
    path.write_text(text.replace(old, new_, times), encoding="utf-8")


def problems(root: Path) -> list[Problem]:
    """What the check says of it."""
    return checks.run(load(root), TODAY)


def book(root: Path) -> Book:
    """The loaded book."""
    return load(root)


def said(root: Path) -> list[str]:
    """What the check says of it, each with its place and its way out."""
    return [str(problem) for problem in problems(root)]
