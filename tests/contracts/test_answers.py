"""Every page of the book passes every check; the unanswered only shrink."""

from scripts import ROOT, checks
from scripts.catalog import load
from scripts.problems import report

BOOK = load()


def test_no_page_has_a_problem():
    problems = checks.run(BOOK)
    assert not problems, "\n" + report(problems)


def test_the_list_of_the_unanswered_is_what_is_missing():
    """It shrinks with every answer: `make check FIX=1` removes the line."""
    listed = (ROOT / checks.UNANSWERED).read_text().split()
    assert listed == BOOK.unanswered


def test_all_88_questions_have_one_of_81_pages():
    ids = [name for wanted in BOOK.wanted.values() for name in wanted.asked]
    assert len(BOOK.wanted) == 81
    assert len(ids) == len(set(ids)) == 88


def test_every_id_of_every_list_is_asked():
    ids = {name for wanted in BOOK.wanted.values() for name in wanted.asked}
    assert ids == (
        {f"A{n}" for n in range(1, 20)}
        | {f"B{n}" for n in range(1, 17)}
        | {f"C1.{n}" for n in range(1, 25)}
        | {f"C2.{n}" for n in range(1, 30)}
    )
