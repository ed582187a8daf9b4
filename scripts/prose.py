"""Finds things in Markdown without being fooled by code.

Everything that reads a page's text (links, citations, formulas, images)
searches `without_code(text)`, which has the length and the lines of the
text itself: a position found in one is a position in the other.
"""

import re

FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})[^\n]*\n"
    r"(?:.*?\n)??(?P=indent)(?P=mark)[ \t]*$",
    re.M | re.S,
)
INLINE = re.compile(r"(?<![`\\])(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
LINK = re.compile(
    r"(?<!!)(?<!\\)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]"
    r"\((?P<target>[^()\s]*(?:\([^()]*\)[^()\s]*)*)(?:\s+\"[^\"]*\")?\)"
)
IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<target>[^)\s]+)\)")
CITATION = re.compile(r"\[@(?P<key>[\w:.-]+?)(?:,\s*(?P<place>[^\]]+))?\]")
DISPLAY = re.compile(r"(?<!\\)\$\$(?P<tex>.+?)(?<!\\)\$\$", re.S)
TEX = re.compile(r"(?<!\\)\$(?![\s$])(?P<tex>(?:\\.|[^\\$])+?)(?<!\s)\$", re.S)
SENTENCE_END = re.compile(
    r"(?<=[\w)\]”\"’*`$%][.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!Eq\.)(?<!vs\.)(?<!Dr\.)"
    r"(?<!al\.)[\"”)*]*\s+(?=\S)|(?<=[。！？])"
)


def blank(match: re.Match) -> str:
    """Spaces in place of a match; its newlines stay."""
    return re.sub(r"[^\n]", " ", match[0])


def without_code(text: str) -> str:
    """The text with fences, inline code and comments blanked out."""
    for pattern in (COMMENT, FENCE, INLINE):
        text = pattern.sub(blank, text)
    return text


def line_at(text: str, position: int) -> int:
    """The line, from 1, on which a position of the text lies."""
    return text.count("\n", 0, position) + 1


def formulas(text: str) -> list[tuple[int, str, bool]]:
    """(position, TeX, is displayed) of each formula, as the site reads it."""
    clear = without_code(text)
    found = [(m.start(), m["tex"].strip(), True) for m in DISPLAY.finditer(clear)]
    rest = DISPLAY.sub(blank, clear)
    found += [(m.start(), m["tex"], False) for m in TEX.finditer(rest)]
    return sorted(found)


def paragraph_at(text: str, start: int, end: int) -> tuple[int, int]:
    """Bounds of the paragraph, list item or block around [start, end)."""
    edge = re.compile(
        r"\n[ \t]*\n|\n(?=[ \t]*(?:[-*+]|\d+\.)[ \t])|\n(?=\|)"
        r"|\n(?=[ \t]*(?:!!!|\?\?\?|///|#))|(?<=\")\n"
    )
    before = [m.end() for m in edge.finditer(text, 0, start)]
    after = edge.search(text, end)
    return (before[-1] if before else 0), (after.start() if after else len(text))


def sentence_around(text: str, start: int, end: int) -> str:
    """The sentence that holds [start, end), unlinked, on one line."""
    low, high = paragraph_at(text, start, end)
    uncited = CITATION.sub(lambda m: "x" * len(m[0]), text[low:high])
    cuts = [
        low,
        *(low + m.end() for m in SENTENCE_END.finditer(uncited)),
        high,
    ]
    first = max(cut for cut in cuts if cut <= start)
    last = min(cut for cut in cuts if cut >= end)
    sentence = re.sub(r"^\s*(?:[-*+]|\d+\.)\s+", "", text[first:last])
    sentence = re.sub(r"^\s*(?:!!!|\?\?\?\+?) \w+ ", "", sentence)
    return " ".join(unlinked(sentence).strip(' "\n|').split())


def unlinked(text: str) -> str:
    """Links become their text, citations disappear; other markup stays."""
    text = re.sub(r"\s*" + CITATION.pattern, "", text)
    return LINK.sub(lambda m: m["text"], IMAGE.sub("", text))


def plain(text: str) -> str:
    """Plain text of a run of Markdown; formulas stay as $TeX$."""
    text = unlinked(text)
    text = re.sub(r"(\*\*|__)(.+?)\1", r"\2", text, flags=re.S)
    text = re.sub(
        r"(?<![\w*])([*_])(?=\S)(.+?)(?<=\S)\1(?![\w*])",
        r"\2",
        text,
        flags=re.S,
    )
    text = re.sub(r"`+([^`]+)`+", r"\1", text)
    return " ".join(text.split())


def dedent(text: str, spaces: int = 4) -> str:
    """The text with that many leading spaces off each line."""
    return re.sub(rf"^ {{0,{spaces}}}", "", text, flags=re.M)
