"""Build the search index that the pages' search box reads, in two parts.

Input: `Document`s. Output: two dictionaries to be written with
``json.dumps(part, ensure_ascii=False, separators=(",", ":"))``. The first is
small and enough for most searches; the second holds the text of the answers:

    names     {"pages": [{"kind", "url", "section", "title",
                          "question": {"en", "zh", "vi"},
                          "aliases": [...], "tags": [...],
                          "numbers": {"A7": url in the list, ...},
                          "headings": [...]}]}
    passages  {url: [{"anchor", "heading", "sentences": [...]}]}

The words are indexed in the browser by theme/assets/search-core.js.
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset(
    "area base br col embed hr img input link meta source track wbr".split()
)
HEADINGS = frozenset(["h1", "h2", "h3", "h4", "h5", "h6"])
SKIPPED_TAGS = frozenset("pre math svg script style button noscript".split())
# Formulas, and what scripts/pages.py and the theme put around an answer.
SKIPPED_CLASSES = frozenset(
    "about arithmatex back caption-prefix cite headerlink made-by noindex "
    "tabbed-labels wordings".split()
)
FOOT_CLASS = "foot"  # of the headings after the answer: sources, links
FOLLOW_UP = "follow-up-"  # starts the id of each follow-up question
SENTENCE_BREAKING = HEADINGS | frozenset(
    "p div section article li ul ol dl dt dd table tr caption figure "
    "figcaption blockquote details summary hr".split()
)
CELL_SEPARATOR = " · "
ELISION = "…"

EMPTY_BRACKETS = re.compile(r"\(\s*\)")
SPACE_BEFORE_STOP = re.compile(r"\s+(?=[.,;:!?)])")
SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bal\.)(?<!\bcf\.)(?<!\bvs\.)"
    r"(?<!\bEq\.)(?<!\bEqs\.)(?<!\bFig\.)(?<!\bSec\.)(?<!\bTab\.)(?<!\bDr\.)"
    r"(?<!\bApp\.)\s+"
    r"|(?<=[。！？；])\s*"
)


@dataclass(frozen=True)
class Document:
    """What a search can find, as the index needs it.

    Attributes:
        url: Address relative to the site's root, "policy/ppo-clipping/".
        section: What stands under the question: the title of its section as
            shown, "Optimising the policy"; what a list or a path holds.
        title: Short title, "PPO clipping".
        question: Wordings by language: "en", "zh", "vi"; or only some.
        aliases: Other words for it by language, each a list.
        tags: The page's tags.
        numbers: Where each number under which it was asked stands: "A7" →
            "lists/rl-35/#a7".
        html: The rendered content, well-formed, without the page's shell,
            formulas still as arithmatex leaves them: reading KaTeX is slow.
        kind: "answer", "open" (a question without an answer yet), "list" or
            "path".
    """

    url: str
    section: str
    title: str
    question: dict[str, str]
    aliases: dict[str, list[str]] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    numbers: dict[str, str] = field(default_factory=dict)
    html: str = ""
    kind: str = "answer"


def build(
    documents: Iterable[Document],
    blocks: Callable[[str], list[dict]] | None = None,
    common: Collection[str] = (),
) -> tuple[dict, dict]:
    """Return the two parts of the index, in the order of the documents.

    Args:
        documents: What can be found.
        blocks: Stands in for extract(), say with a memory.
        common: Headings that every page has; they tell none from another.

    Returns:
        Names and passages.
    """
    pages, passages = [], {}
    for document in documents:
        own = _without_questions(
            (blocks or extract)(document.html), set(document.question.values())
        )
        pages.append(_names(document, own, common))
        if own:
            passages[document.url] = own
    return {"pages": pages}, passages


def extract(html: str) -> list[dict]:
    """Return the text of a page by heading, in reading order.

    A heading and a `<details>` each start a block. What has no id of its own
    gets the anchor of the block around it; text before the first heading
    stands in a block without anchor and heading. Left out: code blocks,
    formulas, drawings, scripts, what is hidden from assistive technology,
    citations and other furniture (SKIPPED_CLASSES; any element may be given
    the class `noindex`), everything below a heading of the class `foot`, and
    sentences and rows of tables without a letter. Inline code stays.

    Args:
        html: Well-formed HTML: every element but the void ones is closed.

    Returns:
        Blocks `{"anchor", "heading", "sentences"}`; none is empty.
    """
    extractor = _Extractor()
    extractor.feed(html)
    extractor.close()
    return extractor.result()


def split_sentences(text: str) -> list[str]:
    """Split English, Chinese and Vietnamese text after each sentence."""
    return [part for part in SENTENCE_END.split(text) if part]


def _names(document: Document, blocks: list[dict], common: Collection[str]) -> dict:
    """All but the text of what can be found."""
    aliases = (name for names in document.aliases.values() for name in names)
    headings = [
        block["heading"]
        for block in blocks
        if block["heading"] and not block["anchor"].startswith(FOLLOW_UP)
    ]
    return {
        "kind": document.kind,
        "url": document.url,
        "section": document.section,
        "title": document.title,
        "question": document.question,
        "aliases": list(dict.fromkeys(aliases)),
        "tags": document.tags,
        "numbers": document.numbers,
        "headings": [heading for heading in headings if heading not in common],
    }


def _without_questions(blocks: list[dict], questions: set[str]) -> list[dict]:
    """Drop the page's own question: the index holds it already."""
    kept = []
    for block in blocks:
        heading = block["heading"]
        sentences = block["sentences"]
        if " ".join(sentences) in questions:
            sentences = []
        block = {
            "anchor": block["anchor"],
            "heading": "" if heading in questions else heading,
            "sentences": [s for s in sentences if s not in questions],
        }
        if block["heading"] or block["sentences"]:
            kept.append(block)
    return kept


class _Extractor(HTMLParser):
    """Collects the blocks of a page while its HTML is read."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._blocks = [_block(anchor="")]
        self._current = self._blocks[0]
        self._around_details: list[dict] = []
        self._skipped_depth = 0
        self._in_heading = False
        self._in_foot = False
        self._text: list[str] = []

    def result(self) -> list[dict]:
        """Return the blocks that hold anything."""
        self._flush()
        return [b for b in self._blocks if b["heading"] or b["sentences"]]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Start a block, end a sentence, or start to skip."""
        if tag in VOID:
            self._text.append(" ")
            return
        if self._skipped_depth:
            self._skipped_depth += 1
            return
        attributes = dict(attrs)
        if _is_skipped(tag, attributes):
            self._skipped_depth = 1
            if "arithmatex" in _classes(attributes) or tag == "math":
                self._text.append(ELISION)
            return
        if tag in SENTENCE_BREAKING:
            self._flush()
        if tag == "details":
            self._around_details.append(self._current)
        if tag in HEADINGS:
            self._in_foot = FOOT_CLASS in _classes(attributes)
        if tag in HEADINGS or tag == "details":
            self._start_block(attributes.get("id"))
        if tag in HEADINGS or tag == "summary":
            self._in_heading = True

    def handle_endtag(self, tag: str) -> None:
        """End a sentence, a heading, a `<details>`, or what is skipped."""
        if tag in VOID:
            return
        if self._skipped_depth:
            self._skipped_depth -= 1
            return
        if tag in ("td", "th"):
            self._text.append(CELL_SEPARATOR)
        if tag in SENTENCE_BREAKING:
            self._flush()
        if tag in HEADINGS or tag == "summary":
            self._in_heading = False
        if tag == "details" and self._around_details:
            around = self._around_details.pop()
            self._current = _block(anchor=around["anchor"])
            self._blocks.append(self._current)

    def handle_data(self, data: str) -> None:
        """Collect text that is not skipped."""
        if not self._skipped_depth:
            self._text.append(data)

    def _start_block(self, anchor: str | None) -> None:
        self._current = _block(anchor=anchor or self._current["anchor"])
        self._blocks.append(self._current)

    def _flush(self) -> None:
        """Turn the collected text into the heading or into sentences."""
        text = _tidy("".join(self._text))
        self._text.clear()
        if self._in_foot:
            return
        if self._in_heading:
            joined = f"{self._current['heading']} {text}"
            self._current["heading"] = joined.strip()
            return
        self._current["sentences"] += [
            sentence.strip()
            for sentence in split_sentences(text)
            if any(character.isalpha() for character in sentence)
        ]


def _tidy(text: str) -> str:
    """Close the gaps that line breaks and what is left out leave behind."""
    text = EMPTY_BRACKETS.sub("", " ".join(text.split()))
    text = SPACE_BEFORE_STOP.sub("", text)
    return text.removesuffix(CELL_SEPARATOR.rstrip())


def _block(anchor: str) -> dict:
    return {"anchor": anchor, "heading": "", "sentences": []}


def _classes(attributes: dict[str, str | None]) -> set[str]:
    return set((attributes.get("class") or "").split())


def _is_skipped(tag: str, attributes: dict[str, str | None]) -> bool:
    return (
        tag in SKIPPED_TAGS
        or attributes.get("aria-hidden") == "true"
        or not SKIPPED_CLASSES.isdisjoint(_classes(attributes))
    )
