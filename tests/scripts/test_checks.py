"""Every message of `make check`, provoked and compared whole."""

import re

import pytest

from scripts import checks
from scripts.problems import report
from tests import books

FIRST = "docs/policy/first-thing.md"
SECOND = "docs/policy/second-thing.md"
BIB = "docs/references.bib"


@pytest.fixture
def root(tmp_path):
    return books.make(tmp_path)


def test_a_sound_book_has_no_problem(root):
    assert books.said(root) == []


# (what is protected, file, old text, new text, the whole message)
EDITS = [
    (
        "a field that is missing",
        FIRST,
        'title: "First thing"\n',
        "",
        f'{FIRST}:1: the front matter has no "title"\n    fix: add a line `title: …`',
    ),
    (
        "a language that is missing",
        FIRST,
        '  zh: "第一？"\n',
        "",
        f'{FIRST}:3: the front matter has no "question.zh"\n'
        "    fix: add a line `zh: …`",
    ),
    (
        "a field nobody knows",
        FIRST,
        "tags:",
        "tag: [x]\ntags:",
        f'{FIRST}:8: the front matter has an unknown field "tag". Did you mean '
        '"tags"?\n'
        "    fix: use one of title, question, asked, tags, aliases, builds_on, "
        "sources, checked",
    ),
    (
        "a field of the wrong type",
        FIRST,
        "checked: 2026-11-30",
        "checked: soon",
        f'{FIRST}:15: "checked" of the front matter: input should be a valid date or '
        "datetime, input is too short\n    fix: see the page form in CONTRIBUTING.md",
    ),
    (
        "front matter that is not YAML",
        FIRST,
        "tags: [todo]",
        "tags: [todo",
        f"{FIRST}:9: the front matter is not YAML: expected ',' or ']', but got "
        "':'\n    fix: quote texts that hold a colon, and indent lists evenly",
    ),
    (
        "no front matter",
        FIRST,
        "---\ntitle",
        "title",
        f"{FIRST}:1: no front matter\n    fix: start the page with a line ---, "
        "the fields, and a line ---",
    ),
    (
        "an asked id nobody knows",
        FIRST,
        "asked: [A1]",
        "asked: [A1, A9]",
        f'{FIRST}:7: unknown asked id "A9".\n    fix: use an id of docs/questions.yml',
    ),
    (
        "an asked id of another question",
        FIRST,
        "asked: [A1]",
        "asked: [A1, B2]",
        f'{FIRST}:7: asked id "B2" belongs to "third-thing"\n'
        "    fix: remove the id, or rename the file to third-thing.md",
    ),
    (
        "an asked id claimed twice",
        SECOND,
        "asked: [A2, B1]",
        "asked: [A2, B1, A1]",
        f'{SECOND}:7: asked id "A1" is claimed by {FIRST} too\n'
        "    fix: leave the id on one page",
    ),
    (
        "a name that two pages claim",
        SECOND,
        "  vi: [second-thing]",
        "  vi: [first  Thing]",
        f'{SECOND}:9: the name "first  Thing" is one of {FIRST} too\n'
        "    fix: leave it on the page it fits best",
    ),
    (
        "an asked id left out",
        SECOND,
        "asked: [A2, B1]",
        "asked: [A2]",
        f'{SECOND}:7: asked id "B1" is missing\n    fix: add B1 to `asked`',
    ),
    (
        "a question that differs from the one asked",
        FIRST,
        '"What is first?"\n  zh',
        '"What comes first?"\n  zh',
        f"{FIRST}:4: question.en differs from docs/questions.yml\n"
        "    fix: write: What is first?",
    ),
    (
        "building on no answer",
        FIRST,
        "builds_on: []",
        "builds_on: [second-think]",
        f'{FIRST}:13: builds_on "second-think" is not an answer. Did you mean '
        '"second-thing"?\n    fix: use the file name, without .md',
    ),
    (
        "building on itself",
        FIRST,
        "builds_on: []",
        "builds_on: [first-thing]",
        f"{FIRST}:13: builds_on goes in a circle: first-thing → first-thing\n"
        "    fix: drop one of these",
    ),
    (
        "a link to no page",
        SECOND,
        "(first-thing.md)",
        "(frist-thing.md)",
        f'{SECOND}:42: link to "frist-thing.md", which does not exist. Did you '
        'mean "first-thing.md"?\n'
        "    fix: link to a finished answer, or write plain text",
    ),
    (
        "a citation of no source",
        FIRST,
        "[@smith2020]",
        "[@smith2020] [@smith2021]",
        f'{FIRST}:34: source "smith2021" is not in docs/references.bib. Did you '
        'mean "smith2020"?\n    fix: add @article{smith2021, ...} to it',
    ),
    (
        "a source never cited",
        FIRST,
        "[@smith2020]",
        "",
        f'{FIRST}:14: source "smith2020" is listed but never cited\n'
        "    fix: cite it as [@smith2020], or run `make check FIX=1`",
    ),
    (
        "a source listed twice",
        FIRST,
        "sources: [smith2020]",
        "sources: [smith2020, smith2020]",
        f'{FIRST}:14: source "smith2020" is listed twice\n'
        "    fix: run `make check FIX=1`",
    ),
    (
        "a work that no page cites",
        BIB,
        "@article{smith2020",
        "@misc{adams1999, author = {B. Adams}, title = {T}, year = {1999}, "
        "url = {https://example.org}}\n@article{smith2020",
        f'{BIB}:1: no page cites "adams1999"\n'
        "    fix: cite it as [@adams1999], or remove the entry",
    ),
    (
        "a key used for two works",
        BIB,
        "@article{smith2020",
        "@article{smith2020, author = {A}, title = {T}, year = {1}, url = {u}}\n"
        "@article{smith2020",
        f"{BIB}:2: cannot read this entry (DuplicateBlockKeyBlock)\n"
        "    fix: write @type{key, field = {value}, ...} with a key used once",
    ),
    (
        "a work without an address",
        BIB,
        ", url = {https://example.org/a}",
        "",
        f'{BIB}:1: source "smith2020" has no url or eprint\n'
        "    fix: add url or eprint = {...} to the entry",
    ),
    (
        "a part of the page that is missing",
        FIRST,
        "## Follow-up questions",
        "## Follow up questions",
        f'{FIRST}:17: no part "## Follow-up questions". Did you mean "Follow up '
        'questions"?\n    fix: see CONTRIBUTING.md',
    ),
    (
        "a tab of the short answer",
        FIRST,
        '=== "中文"',
        '=== "Chinese"',
        f'{FIRST}:18: the short answer has no tab "中文"\n'
        '    fix: add === "中文" and an indented text',
    ),
    (
        "too few wrong answers",
        FIRST,
        '!!! wrong "“Text: another',
        '!!! note "“Text: another',
        f'{FIRST}:46: "Common wrong answers" has 1 entries, needs at least 2\n'
        '    fix: write each as !!! wrong "statement"',
    ),
    (
        "too few follow-ups",
        FIRST,
        '??? question "Text: a third',
        '??? note "Text: a third',
        f'{FIRST}:54: "Follow-up questions" has 3 entries, needs 4 to 6\n'
        '    fix: write each as ??? question "question"',
    ),
    (
        "too few key points",
        FIRST,
        "- Text: fourth\n",
        "",
        f'{FIRST}:68: "A complete answer covers" has 3 entries, needs 4 to 8\n'
        "    fix: write each as - one key point",
    ),
    (
        "an embed of no module",
        FIRST,
        '"policy/first_thing.py:twice"',
        '"policy/frist_thing.py:twice"',
        f'{FIRST}:37: no snippet "policy/frist_thing". Did you mean '
        '"policy/first_thing"?\n'
        "    fix: create snippets/policy/frist_thing.py, or correct the name",
    ),
    (
        "an embed of no section",
        FIRST,
        "first_thing.py:twice",
        "first_thing.py:twize",
        f'{FIRST}:37: policy/first_thing.py has no section "twize". Did you '
        'mean "twice"?\n    fix: use one of: twice; or mark [start:…] and [end:…]',
    ),
    (
        "a table that no function makes",
        FIRST,
        "first_thing.table_values.md",
        "first_thing.table_value.md",
        f"{FIRST}:40: policy/first_thing.py has no function table_value(). Did "
        'you mean "table_values"?\n'
        "    fix: write table_value() in the snippet",
    ),
    (
        "a product of the wrong kind",
        FIRST,
        "first_thing.table_values.md",
        "first_thing.table_values.txt",
        f"{FIRST}:40: table_values() does not make .txt\n"
        "    fix: figure_… makes .svg, table_… .md, report_… .txt",
    ),
    (
        "bad TeX",
        SECOND,
        "$x^2$",
        r"$x^2 + \fracc{1}{2}$",
        f"{SECOND}:42: bad TeX: Undefined control sequence: \\fracc at position "
        "7: x^2 + \\̲f̲r̲a̲c̲c̲{1}{2}\n    fix: correct the formula",
    ),
    (
        "a figure without words",
        FIRST,
        '--8<-- "policy/first_thing.table_values.md"',
        '--8<-- "policy/first_thing.table_values.md"\n\n'
        "![](policy/first_thing.figure_x.svg)",
        f"{FIRST}:42: image policy/first_thing.figure_x.svg has no alternative "
        "text\n    fix: write ![What is seen, in a sentence.](…)",
    ),
    (
        "a figure that no function draws",
        FIRST,
        '--8<-- "policy/first_thing.table_values.md"',
        '--8<-- "policy/first_thing.table_values.md"\n\n'
        "![A line that goes up.](policy/first_thing.figure_x.svg)",
        f"{FIRST}:42: policy/first_thing.py has no function figure_x().\n"
        "    fix: write figure_x() in the snippet",
    ),
    (
        "an image that the build did not make",
        FIRST,
        '--8<-- "policy/first_thing.table_values.md"',
        '--8<-- "policy/first_thing.table_values.md"\n\n'
        "![A line that goes up.](line.png)",
        f"{FIRST}:42: image line.png is not made by the build\n"
        "    fix: write section/module.figure_name.svg",
    ),
    (
        "a date in the future",
        FIRST,
        "checked: 2026-11-30",
        "checked: 2026-12-01",
        f"{FIRST}:15: checked 2026-12-01 is in the future\n"
        "    fix: use today, 2026-11-30, or the day it was checked",
    ),
    (
        "what is left to do",
        FIRST,
        "- Text: fourth",
        "- TODO",
        f"{FIRST}:73: TODO\n    fix: write what is missing",
    ),
    (
        "an answer that has gone",
        checks.ANSWERED,
        "second-thing",
        "seventh-thing",
        f'{checks.ANSWERED}:2: the answer "seventh-thing" has gone\n'
        "    fix: bring the page back; published answers stay",
    ),
    (
        "a hyphen for a minus sign in a sentence",
        SECOND,
        "$x^2$.",
        "$x^2$: from -0.5 to (-3).",
        f'{SECOND}:42: hyphen for a minus sign: "-0.5"\n'
        '    fix: write "−0.5", or run `make check FIX=1`',
    ),
    (
        "a link out of docs/",
        SECOND,
        "(first-thing.md)",
        "(../../none.md)",
        f'{SECOND}:42: link to "../../none.md", which does not exist.\n'
        "    fix: link to a finished answer, or write plain text",
    ),
    (
        "a day that is not in the calendar",
        FIRST,
        "checked: 2026-11-30",
        "checked: 2026-11-31",
        f"{FIRST}:2: the front matter is not YAML: day is out of range for month\n"
        "    fix: quote texts that hold a colon, and indent lists evenly",
    ),
    (
        "a field of the front matter twice",
        FIRST,
        "tags: [todo]",
        "tags: [todo]\ntags: [more]",
        f'{FIRST}:9: "tags" stands twice, on line 8 too\n'
        "    fix: leave one, with all its entries",
    ),
]


@pytest.mark.parametrize(
    "file, old, new, message",
    [pytest.param(*case[1:], id=case[0]) for case in EDITS],
)
def test_message(root, file, old, new, message):
    books.edit(root / file, old, new)
    assert message in books.said(root)


def test_a_page_without_any_product(root):
    books.edit(root / FIRST, '--8<-- "policy/first_thing.table_values.md"', "")
    assert books.said(root) == [
        f"{FIRST}:17: the page shows no figure and no table made by the build\n"
        "    fix: embed a figure_, table_ or report_ function of its snippet"
    ]


def test_parts_out_of_order(root):
    page = root / FIRST
    text = page.read_text()
    low, high = text.index("## Common wrong"), text.index("## Follow-up")
    page.write_text(text[:low] + text[high:] + "\n" + text[low:high])
    assert books.said(root) == [
        f"{FIRST}:18: parts out of order: Short answer, Where the setting "
        "changes the answer, Follow-up questions, A complete answer covers, "
        "Common wrong answers\n"
        "    fix: the order is Short answer, Where the setting changes the "
        "answer, Common wrong answers, Follow-up questions, A complete answer "
        "covers"
    ]


def test_a_circle_is_named_once(root):
    for one, other in (("first", "second"), ("second", "first")):
        page = root / f"docs/policy/{one}-thing.md"
        books.edit(page, "builds_on: []", f"builds_on: [{other}-thing]")
    assert books.said(root) == [
        f"{FIRST}:13: builds_on goes in a circle: first-thing → second-thing → "
        "first-thing\n    fix: drop one of these"
    ]


def test_an_unknown_section(root):
    (root / "docs/polici").mkdir()
    (root / FIRST).rename(root / "docs/polici/first-thing.md")
    assert (
        'docs/polici/first-thing.md:1: unknown section "polici". Did you mean '
        '"policy"?\n    fix: move it to one of policy, rewards'
    ) in books.said(root)


def test_the_section_of_another_question(root):
    (root / "docs/rewards").mkdir()
    (root / FIRST).rename(root / "docs/rewards/first-thing.md")
    assert (
        'docs/rewards/first-thing.md:1: "first-thing" was asked under "policy", '
        'not "rewards"\n    fix: move the page to docs/policy/first-thing.md'
    ) in books.said(root)


def test_a_slug_twice(root):
    (root / "docs/rewards").mkdir()
    text = (root / FIRST).read_text()
    (root / "docs/rewards/first-thing.md").write_text(text)
    assert (
        f'docs/rewards/first-thing.md:1: slug "first-thing" is taken by {FIRST}\n'
        "    fix: rename this file; a published slug never changes"
    ) in books.said(root)


def test_a_file_name_that_is_no_slug(root):
    (root / FIRST).rename(root / "docs/policy/First_thing.md")
    assert (
        'docs/policy/First_thing.md:1: file name "First_thing" is not a slug\n'
        "    fix: use lower-case words joined by hyphens"
    ) in books.said(root)


def test_a_slug_other_than_the_one_asked(root):
    (root / FIRST).rename(root / "docs/policy/first.md")
    assert (
        'docs/policy/first.md:7: asked id "A1" belongs to "first-thing"\n'
        "    fix: remove the id, or rename the file to first-thing.md"
    ) in books.said(root)


def test_a_module_without_page_or_test(root):
    (root / "snippets/policy/lonely.py").write_text('"""Alone."""\n')
    assert books.said(root) == [
        "snippets/policy/lonely.py:1: no page shows this module and no module "
        "imports it\n    fix: embed a section in docs/policy/lonely.md",
        "snippets/policy/lonely.py:1: this module has no test\n"
        "    fix: write tests/snippets/policy/test_lonely.py",
    ]


def test_a_snippet_that_is_not_python(root):
    books.edit(root / "snippets/policy/first_thing.py", "return 2 * x", "return 2 *")
    assert (
        "snippets/policy/first_thing.py:22: not Python: invalid syntax\n"
        "    fix: correct the code"
    ) in books.said(root)


def test_what_a_snippet_or_test_leaves_to_do(root):
    books.edit(root / "snippets/policy/first_thing.py", "2 * x", "2 * x  # TODO")
    test = "tests/snippets/policy/test_first_thing.py"
    books.edit(root / test, "def", "# TODO\ndef")
    assert books.said(root) == [
        "snippets/policy/first_thing.py:22: TODO\n    fix: write what is missing",
        f"{test}:6: TODO\n    fix: write what is missing",
    ]


def test_keys_out_of_order(root):
    bib = root / BIB
    entry = (
        "@misc{adams1999, author = {B. Adams}, title = {T}, year = {1999}, "
        "url = {https://example.org}}\n"
    )
    bib.write_text(bib.read_text() + entry)
    books.edit(root / FIRST, "[@smith2020]", "[@smith2020] [@adams1999]")
    books.edit(root / FIRST, "[smith2020]", "[adams1999, smith2020]")
    assert books.said(root) == [
        f'{BIB}:2: source "adams1999" stands after "smith2020"; keys are '
        "sorted\n    fix: run `make check FIX=1`, or move the entry"
    ]


def test_software_needs_a_full_commit(root):
    books.edit(
        root / BIB,
        "@article{smith2020",
        "@software{a-1, title = {A}, url = {https://example.org}, "
        "version = {12ab}, date = {2026-01-01}}\n@article{smith2020",
    )
    assert (
        f'{BIB}:1: source "a-1" has no version of 40 hex digits\n'
        "    fix: add version of 40 hex digits = {...} to the entry"
    ) in books.said(root)


def test_a_paper_needs_a_year_and_a_commit_dates_itself(root):
    books.edit(
        root / BIB,
        "@article{smith2020",
        "@misc{a1, author = {A, B}, title = {A}, url = {https://example.org}}\n"
        "@software{b-1, title = {B}, url = {https://example.org}, "
        f"version = {{{'1' * 40}}}}}\n@article{{smith2020",
    )
    lines = [line for line in books.said(root) if " has no " in line]
    assert lines == [
        f'{BIB}:1: source "a1" has no year or date\n'
        "    fix: add year or date = {...} to the entry"
    ]


def test_all_problems_come_in_one_run_sorted_by_place(root):
    books.edit(root / FIRST, "checked: 2026-11-30", "checked: 2027-01-01")
    books.edit(root / SECOND, "(first-thing.md)", "(none.md)")
    books.edit(root / SECOND, "$x^2$", "$x^{2$")
    text = report(books.problems(root))
    places = re.findall(r"^(\S+:\d+):", text, re.M)
    assert places == [f"{FIRST}:15", f"{SECOND}:42", f"{SECOND}:42"]
    assert text.endswith("3 problem(s)")


def test_code_is_no_formula_citation_or_link(root):
    books.edit(
        root / FIRST,
        "## Where",
        "Cost `$\\bad$` and `[@nobody]` and `[x](no.md)`.\n\n"
        "```python\n# $\\bad$ [@nobody] [x](no.md)\n```\n\n## Where",
    )
    assert books.said(root) == []


def test_repair_sorts_lists_and_remembers(root):
    bib = root / BIB
    bib.write_text(
        bib.read_text()
        + "@misc{adams1999, author = {B. Adams}, title = {T}, year = {1999}, "
        "url = {https://example.org}}\n"
    )
    books.edit(root / FIRST, "[@smith2020]", "[@smith2020] [@adams1999], -3 to `-3`")
    (root / checks.ANSWERED).write_text("second-thing\n")
    assert checks.fix(books.book(root)) == [
        "docs/references.bib: sorted",
        f"{FIRST}: sources, minus signs",
        f"{checks.ANSWERED}: 1 more",
    ]
    assert "−3 to `-3`" in (root / FIRST).read_text()
    assert (root / checks.ANSWERED).read_text() == "first-thing\nsecond-thing\n"
    assert books.said(root) == []
    assert checks.fix(books.book(root)) == []


def test_a_page_with_todos_is_not_remembered_as_answered(root):
    books.edit(root / SECOND, "- Text: fourth", "- TODO")
    (root / checks.ANSWERED).unlink()
    checks.fix(books.book(root))
    assert (root / checks.ANSWERED).read_text() == "first-thing\n"
