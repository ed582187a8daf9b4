"""Every page of the book passes every check."""

from scripts import checks
from scripts.catalog import load
from scripts.problems import report


def test_no_page_has_a_problem():
    problems = checks.run(load())
    assert not problems, "\n" + report(problems)
