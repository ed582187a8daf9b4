"""What the search can find: answers, open questions, lists, reading paths.

What people call a list or a path stands here, once for all of them; the names
of each come from docs/book.yml and scripts/pages.py.
"""

from scripts import pages
from scripts.catalog import Book, Wanted
from scripts.search_index import Document

LIST_NAMES = {
    "en": ["interview list", "interview questions", "question list", "roundup"],
    "zh": ["面经", "题单", "面试题", "面试题单", "面试题目列表"],
    "vi": ["danh sách câu hỏi phỏng vấn", "câu hỏi phỏng vấn", "bộ câu hỏi"],
}
ALL_NAMES = {
    "en": ["list of questions", "every question"],
    "zh": ["全部问题", "所有问题"],
    "vi": ["tất cả câu hỏi"],
}
PATH_NAMES = {
    "en": ["reading path", "reading paths", "reading order", "where to start"],
    "zh": ["阅读路径", "阅读顺序", "学习路线", "从哪里开始"],
    "vi": ["lộ trình đọc", "lộ trình học", "bắt đầu từ đâu"],
}


def documents(book: Book, html: dict[str, str]) -> list[Document]:
    """Everything that can be found.

    Args:
        book: The book.
        html: The rendered text of each answer by its slug.
    """
    return [*_answers(book, html), *_open(book), *_lists(book), *_paths(book)]


def _answers(book: Book, html: dict[str, str]) -> list[Document]:
    return [
        Document(
            url=answer.url,
            section=book.sections[answer.section]["title"],
            title=answer.meta.title,
            question=answer.meta.question.model_dump(),
            aliases=answer.meta.aliases.model_dump(),
            tags=answer.meta.tags,
            numbers=_numbers(book, answer.meta.asked),
            html=html[answer.slug],
        )
        for answer in book.ordered
    ]


def _open(book: Book) -> list[Document]:
    """Questions without an answer; each leads to its row in a list."""
    return [
        Document(
            kind="open",
            url=next(iter(numbers.values()), f"questions/#{wanted.section}"),
            section=book.sections[wanted.section]["title"],
            title=wanted.slug.replace("-", " "),
            question=wanted.question.model_dump(),
            numbers=numbers,
        )
        for wanted in book.wanted.values()
        if wanted.slug not in book.sound
        for numbers in [_numbers(book, wanted.asked)]
    ]


def _lists(book: Book) -> list[Document]:
    def entry(title: str, url: str, wanted: list[Wanted], names: dict) -> Document:
        return Document(
            kind="list",
            url=url,
            title=title,
            section=pages.count(book, wanted),
            question={"en": title},
            aliases=names,
        )

    lists = [
        entry(
            one["title"],
            one["url"],
            _on(book, one["url"]),
            LIST_NAMES | {"short": [one["short"]]},
        )
        for one in pages.shell(book)["lists"]
    ]
    every = list(book.wanted.values())
    return [*lists, entry("All questions", "questions/", every, ALL_NAMES)]


def _paths(book: Book) -> list[Document]:
    walks = pages.shell(book)["paths"]
    names = " · ".join(walk["title"] for walk in walks)
    shown = [("Reading paths", "paths/", names)]
    for walk in walks:
        length = f"{len(walk['answers'])} answers, {walk['minutes']} min"
        shown.append((walk["title"], f"paths/#{walk['id']}", length))
    return [
        Document(
            kind="path",
            url=url,
            title=title,
            section=about,
            question={"en": title},
            aliases=PATH_NAMES,
        )
        for title, url, about in shown
    ]


def _numbers(book: Book, asked) -> dict[str, str]:
    """Where each number of a question stands in its list."""
    return {name: pages.asked_url(book, name) for name in asked}


def _on(book: Book, url: str) -> list[Wanted]:
    """The questions of the list with this address."""
    return [
        wanted
        for wanted in book.wanted.values()
        if any(place.startswith(url) for place in _numbers(book, wanted.asked).values())
    ]
