"""`make new SLUG=…`: a page, its snippet and its test, with TODOs to fill in.

What it writes passes every check but those that say TODO. Without a slug it
lists the questions that have no answer.
"""

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from string import Template

from scripts import ROOT, checks
from scripts.catalog import Book, load
from scripts.problems import nearest, report

PAGE = Template("""---
title: $title
question:
  en: $en
  zh: $zh
  vi: $vi
asked: [$asked]
tags: [todo]
aliases:
  en: [TODO words people type]
  zh: [TODO]
  vi: [TODO]
builds_on: []
sources: [$source]
checked: $today
---

## Short answer

=== "English"

    TODO: what you would say aloud in 45 to 60 seconds.

=== "中文"

    TODO：用中文思考后再写，不要逐句翻译。

=== "Tiếng Việt"

    TODO: viết như người nghĩ bằng tiếng Việt.

## TODO: derive it

TODO: define every symbol, keep the steps [@$source].

```python
--8<-- "$section/$module.py:twice"
```

--8<-- "$section/$module.table_values.md"

## Where the setting changes the answer

TODO: or remove this part where nothing changes.

## Common wrong answers

!!! wrong "“TODO: a statement people really make.”"
    TODO: what is wrong, and what disproves it.

!!! wrong "“TODO: another one.”"
    TODO

## Follow-up questions

??? question "TODO: what would a strong interviewer ask next?"
    TODO

??? question "TODO: a second one?"
    TODO

??? question "TODO: a third one?"
    TODO

??? question "TODO: one that crosses to infrastructure or back?"
    TODO

## A complete answer covers

- TODO
- TODO: second
- TODO: third
- TODO: fourth
""")

SNIPPET = Template('''"""Code, tables and figures of the answer "$slug".

Page:      docs/$section/$slug.md
Source:    TODO: author (year), "Title", address, equation number.
Notation:  TODO
Units:     TODO
"""

from snippets.show import markdown_table


# --8<-- [start:twice]
def twice(x: float) -> float:
    """TODO: the code that answers the question.

    Args:
        x: TODO: shape and units of every argument.

    Returns:
        TODO: shape, units and direction.
    """
    return 2 * x


# --8<-- [end:twice]


def table_values() -> str:
    """TODO: what the table shows."""
    rows = [(f"{x:g}", f"{twice(x):g}") for x in (1.0, 2.0)]
    return markdown_table(["x", "twice"], rows)
''')

TEST = Template('''"""TODO: says what $module.py is checked against."""

from snippets.$section.$module import table_values, twice


def test_against_the_definition():
    assert twice(3.0) == 3.0 + 3.0  # TODO: share no code with the snippet


def test_claim_the_table_holds_what_the_page_says():
    assert table_values().splitlines()[-1] == "| 2 | 4 |"  # TODO
''')


class Refused(Exception):
    """The slug cannot be written; the message says why and the way out."""


def files(book: Book, slug: str, today: date) -> dict[Path, str]:
    """Texts of the new files, by path.

    Raises:
        Refused: The slug exists, or was never asked.
    """
    if slug in book.answers:
        path = book.answers[slug].path.relative_to(book.root)
        raise Refused(
            f'"{slug}" exists: edit {path}\n'
            "    fix: `make new` lists the questions that have no answer"
        )
    if slug not in book.wanted:
        near = nearest(slug, book.wanted)
        raise Refused(
            f'"{slug}" is not in docs/questions.yml.{near}\n'
            "    fix: use a slug of that file, or add the question to it"
        )
    wanted = book.wanted[slug]
    module = slug.replace("-", "_")
    words = {
        "slug": slug,
        "section": wanted.section,
        "module": module,
        "title": json.dumps(slug.replace("-", " ").capitalize()),
        "asked": ", ".join(wanted.asked),
        "source": min(book.sources, default="TODO"),
        "today": today.isoformat(),
    }
    quoted = {
        code: json.dumps(text, ensure_ascii=False)
        for code, text in wanted.question.model_dump().items()
    }
    root, section = book.root, wanted.section
    snippets, tests = (
        root / "snippets" / section,
        root / "tests/snippets" / section,
    )
    made = {
        root / "docs" / section / f"{slug}.md": PAGE.substitute(words | quoted),
        snippets / f"{module}.py": SNIPPET.substitute(words),
        tests / f"test_{module}.py": TEST.substitute(words),
    }
    package = snippets / "__init__.py"
    if not package.exists():
        title = book.sections[section]["title"]
        made[package] = f'"""Snippets of the section "{title}"."""\n'
    return made


def unanswered(book: Book) -> str:
    """The questions without a page, a line each, and how to start one."""
    open_ = [book.wanted[slug] for slug in book.unanswered]
    if not open_:
        return "Every question has its page; a new one goes into docs/questions.yml"
    width = max(len(wanted.slug) for wanted in open_)
    lines = [f"{wanted.slug:{width}}  {wanted.question.en}" for wanted in open_]
    start = f"{len(open_)} without an answer; start one: make new SLUG={open_[0].slug}"
    return "\n".join([*lines, start])


def main() -> int:
    """Write the files of one slug, overwriting nothing; without one, list them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("slug", nargs="?", help="a slug of docs/questions.yml")
    slug, book = parser.parse_args().slug, load(ROOT)
    if book.plan.problems:
        print(report(book.plan.problems), file=sys.stderr)
        return 1
    if not slug:
        print(unanswered(book))
        return 0
    try:
        made = files(book, slug, date.today())
        taken = [path for path in made if path.exists()]
        if taken:
            shown = ", ".join(str(p.relative_to(ROOT)) for p in taken)
            raise Refused(f"would overwrite {shown}\n    fix: move it away")
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    for line in checks.fix(load(ROOT)):
        print(f"fixed {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
