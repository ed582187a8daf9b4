"""What of a book can be searched, and where each result leads."""

import pytest

from scripts.search_documents import documents
from tests import books


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    book = books.book(books.make(tmp_path_factory.mktemp("book")))
    return documents(book, dict.fromkeys(book.sound, "<p>Text.</p>"))


def of(found, kind):
    return [document for document in found if document.kind == kind]


def test_an_answer_has_its_text_and_its_places_in_the_lists(found):
    second = next(one for one in found if one.url == "policy/second-thing/")
    assert second.kind == "answer"
    assert second.html == "<p>Text.</p>"
    assert second.numbers == {"A2": "lists/asked/#a2", "B1": "lists/asked/#b1"}
    assert second.section == "Policy"


def test_an_open_question_leads_to_its_row(found):
    (third,) = of(found, "open")
    assert third.url == "lists/asked/#b2"
    assert third.numbers == {"B2": "lists/asked/#b2"}
    assert third.question["vi"] == "Thứ ba?"
    assert third.title == "third thing"


def test_a_list_says_how_much_is_answered_and_has_names_in_each_language(found):
    one, every = of(found, "list")
    assert (one.url, one.title) == ("lists/asked/", "The list")
    assert one.section == "2 of 3 answered"
    names = [name for names in one.aliases.values() for name in names]
    assert {"interview list", "面经", "câu hỏi phỏng vấn", "List"} <= set(names)
    assert every.url == "questions/"


def test_the_reading_paths_and_their_page_are_found_by_name(found):
    paths = of(found, "path")
    assert [one.url for one in paths] == [
        "paths/",
        "paths/#evening",
        "paths/#algorithms",
        "paths/#infrastructure",
    ]
    for one in paths:
        assert "reading path" in one.aliases["en"]
        assert "阅读路径" in one.aliases["zh"]
        assert "lộ trình đọc" in one.aliases["vi"]
    assert paths[1].section.startswith("2 answers, ")
