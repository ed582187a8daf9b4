"""`make shared`: which lines are cited twice, and what is said of them."""

import pytest

from scripts import shared
from tests import books
from tests.scripts.test_pages import SOFTWARE

FIRST, SECOND = "docs/policy/first-thing.md", "docs/policy/second-thing.md"


@pytest.fixture
def root(tmp_path):
    root = books.make(tmp_path)
    bib = root / "docs/references.bib"
    bib.write_text(SOFTWARE + bib.read_text())
    return root


def say(root, page, text):
    books.edit(root / page, "## Where the", f"{text}\n\n## Where the")


def cite(place):
    return f"[@frame-1234567, {place}]"


def test_it_prints_what_each_page_says_of_the_same_lines(root):
    say(root, FIRST, f"One. The **default** is `3` {cite('a.py#L10-L20')}. Two.")
    say(
        root,
        SECOND,
        f"| framework | default |\n| - | - |\n| F | 4 {cite('a.py#L12')} |",
    )
    assert shared.text(books.book(root)) == (
        "Frame@1234567 a.py\n"
        "\n"
        f"  {FIRST}:42 (L10–20)\n"
        "    The default is 3.\n"
        f"  {SECOND}:46 (L12)\n"
        "    F | 4\n"
        "\n"
        "\n"
        "1 location(s) in 1 file(s), cited by two or more pages"
    )


@pytest.mark.parametrize(
    "one, other, found",
    [
        ("a.py#L10-L20", "a.py#L20-L30", 1),
        ("a.py#L10-L20", "a.py#L21-L30", 0),
        ("a.py#L10", "a.py#L10", 1),
        ("a.py", "a.py", 1),
        ("a.py", "a.py#L10", 0),
        ("a.py#L10", "b.py#L10", 0),
    ],
)
def test_lines_that_overlap_in_one_file_are_a_location(root, one, other, found):
    say(root, FIRST, f"So {cite(one)}.")
    say(root, SECOND, f"So {cite(other)}.")
    assert len(shared.shared(books.book(root))) == found


def test_a_long_range_is_compared_with_each_that_it_overlaps(root):
    say(root, FIRST, f"All {cite('a.py#L1-L90')}.")
    say(root, SECOND, f"One {cite('a.py#L10')}.\n\nTwo {cite('a.py#L80-L95')}.")
    (groups,) = shared.shared(books.book(root)).values()
    said = [[m.sentence for m in group] for group in groups]
    assert said == [["All.", "One."], ["All.", "Two."]]


def test_one_page_that_cites_lines_twice_is_no_location(root):
    say(root, FIRST, f"One {cite('a.py#L1')}.\n\nTwo {cite('a.py#L1')}.")
    assert shared.shared(books.book(root)) == {}


def test_papers_and_whole_repositories_are_no_location(root):
    for page in (FIRST, SECOND):
        say(root, page, "So [@smith2020, Eq. 7] and [@frame-1234567].")
    assert shared.shared(books.book(root)) == {}


def test_a_name_chooses(root):
    for page in (FIRST, SECOND):
        say(root, page, f"It is `alpha` {cite('a.py#L1')}.\n\nBeta {cite('b.py#L1')}.")
    book = books.book(root)
    for name, count in (("alpha", 1), ("b.py", 1), ("first-thing", 2), ("gamma", 0)):
        assert shared.text(book, name).splitlines()[-1].startswith(f"{count} loc"), name
