"""questions.json, for notes and programs, and its JSON Schema."""

from datetime import date

from pydantic import BaseModel, ConfigDict, Field

from scripts import prose
from scripts.catalog import LANGUAGES, Book, Wording


class Export(BaseModel):
    """A part of questions.json; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class FollowUp(Export):
    """A question that comes next, and its answer."""

    question: str
    answer: str


class Cited(Export):
    """A source of an answer."""

    key: str
    title: str
    url: str


class Question(Export):
    """One answered question; texts are plain, with formulas as $TeX$."""

    slug: str = Field(description="Permanent name of the answer")
    url: str = Field(description="Address, relative to the site's root")
    section: str
    title: str
    question: Wording
    asked: list[str] = Field(description="Where it was asked, e.g. C1.7")
    tags: list[str]
    builds_on: list[str] = Field(description="Slugs to understand first")
    short_answer: Wording
    key_points: list[str] = Field(description="What a complete answer covers")
    follow_ups: list[FollowUp]
    links: list[str] = Field(description="Slugs that the answer links to")
    sources: list[Cited]
    checked: date = Field(description="Day every fact was last checked")


class Questions(Export):
    """All answered questions of the LLM-RL Answer Book."""

    questions: list[Question]


def questions(book: Book) -> Questions:
    """The whole export."""
    return Questions(questions=[_question(book, a) for a in book.ordered])


def _question(book: Book, answer) -> Question:
    meta = answer.meta
    short = {code: prose.plain(answer.short_answer[code]) for code in LANGUAGES}
    links = dict.fromkeys(link.slug for link in answer.links if link.slug in book.sound)
    return Question(
        slug=answer.slug,
        url=answer.url,
        section=answer.section,
        title=meta.title,
        question=meta.question,
        asked=meta.asked,
        tags=meta.tags,
        builds_on=meta.builds_on,
        short_answer=Wording(**short),
        key_points=[prose.plain(point) for point in answer.key_points],
        follow_ups=[
            FollowUp(question=prose.plain(q), answer=prose.plain(a))
            for q, a in answer.follow_ups
        ],
        links=list(links),
        sources=[
            Cited(
                key=key,
                title=book.sources[key].title,
                url=book.sources[key].url,
            )
            for key in meta.sources
        ],
        checked=meta.checked,
    )


def schema() -> dict:
    """The JSON Schema (2020-12) of questions.json."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Questions.model_json_schema(),
    }
