"""What pages are made of: citations, lists, paths, links both ways."""

import markdown
import pytest

from scripts import exports, pages, reference
from tests import books

SOFTWARE = (
    "@software{frame-1234567, title = {Frame}, url = {https://example.org/frame},"
    " version = {1234567890123456789012345678901234567890}, date = {2026-08-22}}\n"
)


@pytest.fixture
def root(tmp_path):
    return books.make(tmp_path)


@pytest.mark.parametrize(
    "page, target, expected",
    [
        ("policy/a/", "policy/b/", "../b/"),
        ("policy/a/", "lists/x/#a1", "../../lists/x/#a1"),
        ("", "policy/a/", "policy/a/"),
        ("policy/a/", "figures/f.svg", "../../figures/f.svg"),
        ("policy/a/", "policy/a/#x", "./#x"),
    ],
)
def test_relative_addresses(page, target, expected):
    assert pages.relative(page, target) == expected


def test_a_citation_shows_author_year_and_place(root):
    book = books.book(root)
    text = pages.cite(book, "So [@smith2020, Eq. 7] and [@smith2020]; `[@smith2020]`.")
    assert text == (
        "So <a href='#source-smith2020' id='cite-smith2020-1' class='cite'>"
        "Smith 2020, Eq. 7</a> and <a href='#source-smith2020' "
        "id='cite-smith2020-2' class='cite'>Smith 2020</a>; `[@smith2020]`."
    )


def test_a_citation_behind_brackets_is_no_reference(root):
    text = pages.cite(books.book(root), "a cap of [0, 6] [@smith2020].")
    page = markdown.markdown(text)
    assert page == (
        "<p>a cap of [0, 6] <a href='#source-smith2020' id='cite-smith2020-1' "
        "class='cite'>Smith 2020</a>.</p>"
    )


def test_a_place_in_software_leads_to_its_lines_at_the_commit(root):
    bib = root / "docs/references.bib"
    bib.write_text(SOFTWARE + bib.read_text())
    book = books.book(root)
    text = pages.cite(book, "[@frame-1234567, src/loss.py#L10-L20]")
    assert text == (
        "<a href='https://example.org/frame/blob/"
        "1234567890123456789012345678901234567890/src/loss.py#L10-L20' "
        "id='cite-frame-1234567-1' class='cite'>Frame@1234567 loss.py L10–20</a>"
    )


@pytest.mark.parametrize(
    "authors, label",
    [
        ("{Smith, Ann}", "Smith 2020"),
        ("{Smith, Ann and Wu, Bo}", "Smith & Wu 2020"),
        ("{Smith, Ann and Wu, Bo and Li, C}", "Smith et al. 2020"),
        ("{Smith, Ann and others}", "Smith et al. 2020"),
        ("{{The Team}}", "The Team 2020"),
        ("{Ann Smith and Bo Wu}", "Smith & Wu 2020"),
    ],
)
def test_author_and_year(root, authors, label):
    books.edit(root / "docs/references.bib", "{Smith, Ann}", authors)
    assert books.book(root).sources["smith2020"].label == label


def test_linked_from_holds_the_sentence(root):
    book = books.book(root)
    (other, link), *rest = book.linked_from("first-thing")
    assert (other.slug, link.sentence, rest) == (
        "second-thing",
        "See the first and $x^2$.",
        [],
    )
    assert "See the first and $x^2$." in pages.foot(book, book.answers["first-thing"])


def test_linked_from_is_only_the_link_where_no_sentence_is_whole(root):
    second = root / "docs/policy/second-thing.md"
    books.edit(second, "See [the first]", "| a | b |\n| - | - |\n| See [the first]")
    foot = pages.foot(books.book(root), books.book(root).answers["first-thing"])
    assert "- [Second thing](../policy/second-thing.md)\n{ .linked-from }" in foot
    books.edit(second, "\n## Where", "\nRead [one](first-thing.md).\n\n## Where")
    foot = pages.foot(books.book(root), books.book(root).answers["first-thing"])
    assert "(../policy/second-thing.md): Read one.\n" in foot


def test_builds_on_comes_first_then_the_order_asked(root):
    assert [a.slug for a in books.book(root).ordered] == [
        "first-thing",
        "second-thing",
    ]
    first = root / "docs/policy/first-thing.md"
    books.edit(first, "builds_on: []", "builds_on: [second-thing]")
    book = books.book(root)
    assert [a.slug for a in book.ordered] == ["second-thing", "first-thing"]
    after = pages.read_next(book, book.answers["second-thing"])
    assert [a.slug for a in after] == ["first-thing"]


def test_a_list_keeps_its_own_order_and_marks_what_is_missing(root):
    page = pages.list_page(books.book(root), "asked")
    numbers = [f'<span class="number">{n}</span>' for n in ("A1", "A2", "B1", "B2")]
    places = [page.index(number) for number in numbers]
    assert places == sorted(places)
    assert "3 of 4 answered" in page
    last = page[page.index('id="b2"') :]
    assert "Not answered yet" in last and "<a " not in last
    assert '<a href="../../policy/first-thing/" class="ask">What is first?' in page


def test_every_generated_page_is_in_the_menu(root):
    book = books.book(root)

    def uris(menu):
        for item in menu:
            if isinstance(item, str):
                yield item
            elif isinstance(item, dict):
                for value in item.values():
                    yield from uris(value if isinstance(value, list) else [value])

    listed = set(uris(pages.navigation(book)))
    assert set(pages.generated(book)) <= listed
    assert {f"policy/{s}.md" for s in ("first-thing", "second-thing")} <= listed


def test_paths_are_derived_and_fit_an_evening(root):
    book = books.book(root)
    walks = pages.paths(book)
    assert [a.slug for a in walks["algorithms"]] == [
        "first-thing",
        "second-thing",
    ]
    assert walks["infrastructure"] == []
    assert sum(map(pages.minutes, walks["evening"])) <= pages.EVENING_MINUTES


def test_an_embedded_section_links_to_its_function_and_test(root):
    book = books.book(root)
    answer = book.answers["first-thing"]
    text = pages.credit(book, answer.body, answer.url)
    assert (
        '<p class="made-by"><a href="../../reference/policy/first_thing/#snippets.'
        'policy.first_thing.twice"><code>twice</code></a> in '
        '<a href="../../code/snippets/policy/first_thing.py"><code>snippets/policy/'
        "first_thing.py</code></a>, tested by "
        '<a href="../../code/tests/snippets/policy/test_first_thing.py">'
    ) in text
    page = reference.page(book, book.modules["policy/first_thing"])
    assert 'class="shown-in">Shown in <a href="../../../policy/first-thing/">' in page
    served = reference.files(root)
    assert {"code/snippets/show.py", "code/snippets/policy/first_thing.py"} <= set(
        served
    )
    assert "code/tests/snippets/policy/test_first_thing.py" in served


def test_the_reference_lists_what_is_shown_or_used_elsewhere(root):
    first = root / "snippets/policy/first_thing.py"
    first.write_text(first.read_text() + "\n\ndef helper() -> int:\n    return 1\n")
    book = books.book(root)
    module = book.modules["policy/first_thing"]
    assert "twice" in reference.listed(book, module)
    assert "helper" not in reference.listed(book, module)
    second = root / "snippets/policy/second_thing.py"
    line = "from snippets.policy.first_thing import helper\n"
    second.write_text(second.read_text() + line)
    book = books.book(root)
    assert "helper" in reference.listed(book, book.modules["policy/first_thing"])


def test_a_description_has_whole_sentences_without_formulas(root):
    first = root / "docs/policy/first-thing.md"
    text = first.read_text()
    start = text.index('=== "English"')
    tab = '=== "English"\n\n    One. With $x$ here. ' + "Long words. " * 40
    first.write_text(text[:start] + tab + text[text.index('\n\n=== "中文"') :])
    found = pages.description(books.book(root).answers["first-thing"])
    assert found.startswith("One. Long words.")
    assert len(found) <= pages.DESCRIPTION and "$" not in found


def test_the_export_holds_plain_texts(root):
    first = root / "docs/policy/first-thing.md"
    books.edit(first, "- Text: fourth", "- **Fourth** point, $x$ [@smith2020]")
    book = books.book(root)
    question = exports.questions(book).questions[0]
    assert question.key_points[-1] == "Fourth point, $x$"
    assert question.short_answer.zh.startswith("Text：用中文")
    assert question.links == []
    assert exports.questions(book).questions[1].links == ["first-thing"]
    assert [s.key for s in question.sources] == ["smith2020"]
