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
    r"(?<!et al\.)(?<!Fig\.)(?<!Sec\.)(?<!App\.)(?<!cf\.)"
    r"[\"”)*]*\s+(?=\S)|(?<=[。！？])"
)
BLOCK = re.compile(r"[ \t]*(?:[-*+][ \t]|\d+\.[ \t])")
"""The first line of a list item."""
ALONE = re.compile(r"[ \t]*(?:$|\||!!!|\?\?\?|===|///|#|```|~~~|--8<--|\$\$)")
"""A line that belongs to no paragraph but itself: blank, table row, title."""
CAPTION = re.compile(
    r"^[ \t]*/// [\w-]+-caption[^\n]*\n.*?^[ \t]*///[ \t]*$", re.M | re.S
)
NEEDED = re.compile(
    r"(?:^|[(,;:]|\b(?:and|as|at|by|from|in|of|or|per|see|than|to|with))\s*\[@", re.I
)
"""A citation without which its sentence has a hole."""
POINTER_WORDS = 8
"""A shorter sentence with a colon, as "More: trust regions.", only points."""
WHOLE = re.compile(r"(?![a-z,;:.)])\S.*[.!?。！？][”’\"')]*", re.S)
EMPHASIS = (
    re.compile(r"(\*\*|__)(?P<text>.+?)\1", re.S),
    re.compile(r"(?<![\w*])([*_])(?=\S)(?P<text>.+?)(?<=\S)\1(?![\w*])", re.S),
)
NOT_PROSE = (
    FENCE,
    COMMENT,
    INLINE,
    DISPLAY,
    TEX,
    CITATION,
    re.compile(r"(?<=\])\([^)\s]+"),
    re.compile(r"</?\w[^>]*>|https?://[^\s)>]+"),
)
HYPHEN = re.compile(r"(?<![\dA-Za-z_À-ỹ.)\]’%/–-])-(?=\.?\d)")
"""A hyphen that is a minus sign: no range, name or exponent."""


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


def minus_signs(text: str) -> list[int]:
    """Positions of hyphens before a number, outside code, TeX and addresses."""
    for pattern in NOT_PROSE:
        text = pattern.sub(lambda m: re.sub(r"[^\n]", "x", m[0]), text)
    return [m.start() for m in HYPHEN.finditer(text)]


def with_minus_signs(text: str) -> str:
    """The text with a real minus sign in place of each such hyphen."""
    letters = list(text)
    for position in minus_signs(text):
        letters[position] = "−"
    return "".join(letters)


def paragraph_at(text: str, start: int, end: int) -> tuple[int, int]:
    """Bounds of the paragraph, list item, table row or title around [start, end)."""
    low, high = text.rfind("\n", 0, start) + 1, (text + "\n").index("\n", end)
    if ALONE.match(text[low:high]):
        return low, high
    while low and not BLOCK.match(text, low):
        above = text.rfind("\n", 0, low - 1) + 1
        if ALONE.match(text[above : low - 1]):
            break
        low = above
    while high < len(text):
        below = (text + "\n").index("\n", high + 1)
        line = text[high + 1 : below]
        if ALONE.match(line) or BLOCK.match(line):
            break
        high = below
    return low, high


def statement_around(text: str, start: int, end: int) -> str:
    """The sentence, or the cells of the table row, around [start, end); plain."""
    low, high = paragraph_at(text, start, end)
    if text[low:high].lstrip().startswith("|"):
        cells = re.split(r"(?<!\\)\|", text[low:high].strip().strip("|"))
        return " | ".join(plain(cell) for cell in cells)
    return plain(_sentence(text, start, end))


def sentence_around(text: str, start: int, end: int) -> str:
    """The sentence around [start, end), without links and emphasis, on one line.

    Empty where there is none that can stand alone: in a table, a caption, a
    list of words, before a formula, with a citation as its subject or object.
    """
    low, high = paragraph_at(text, start, end)
    captions = [m.span() for m in CAPTION.finditer(text)]
    sentence = _sentence(text, start, end)
    if text[low:high].lstrip().startswith(("|", "#")) or NEEDED.search(sentence):
        return ""
    if any(a <= start < b for a, b in captions):
        return ""
    sentence = " ".join(unlinked(without_emphasis(sentence)).split())
    bare = _uncoded(sentence)
    closed = all(bare.count(a) == bare.count(b) for a, b in ("()", "[]", "“”"))
    points = ":" in bare and len(bare.split()) < POINTER_WORDS
    return sentence if closed and not points and WHOLE.fullmatch(sentence) else ""


def _sentence(text: str, start: int, end: int) -> str:
    """The sentence's Markdown, without the mark of its list item or title."""
    low, high = paragraph_at(text, start, end)
    uncited = CITATION.sub(lambda m: "x" * len(m[0]), text[low:high])
    cuts = [low, *(low + m.end() for m in SENTENCE_END.finditer(uncited)), high]
    first = max(cut for cut in cuts if cut <= start)
    last = min(cut for cut in cuts if cut >= end)
    sentence = re.sub(r"^\s*(?:[-*+]|\d+\.)\s+", "", text[first:last])
    titled = re.fullmatch(r"\s*(?:!!!|\?\?\?\+?) \w+ \"(.*?)\"?\s*", sentence, re.S)
    return (titled[1] if titled else sentence).strip()


def _uncoded(text: str) -> str:
    for pattern in (INLINE, DISPLAY, TEX):
        text = pattern.sub("x", text)
    return text


def without_emphasis(text: str) -> str:
    """The text without `**`, `*` and `_` around words; code and TeX stay."""
    hidden: list[str] = []

    def hide(match: re.Match) -> str:
        hidden.append(match[0])
        return chr(0xE000 + len(hidden) - 1)

    for pattern in (INLINE, DISPLAY, TEX):
        text = pattern.sub(hide, text)
    for pattern in EMPHASIS:
        text = pattern.sub(lambda m: m["text"], text)
    text = text.replace("**", "")
    for i, kept in reversed(list(enumerate(hidden))):
        text = text.replace(chr(0xE000 + i), kept)
    return text


def unlinked(text: str) -> str:
    """Links become their text, citations disappear; other markup stays."""
    text = re.sub(r"\s*" + CITATION.pattern, "", text)
    return LINK.sub(lambda m: m["text"], IMAGE.sub("", text))


def plain(text: str) -> str:
    """Plain text of a run of Markdown; formulas stay as $TeX$."""
    text = without_emphasis(unlinked(text))
    text = re.sub(r"`+([^`]+)`+", r"\1", text)
    return " ".join(text.split())


def dedent(text: str, spaces: int = 4) -> str:
    """The text with that many leading spaces off each line."""
    return re.sub(rf"^ {{0,{spaces}}}", "", text, flags=re.M)
