"""Reading Markdown: formulas, sentences, plain text, code left alone."""

import markdown
import pytest

from scripts import prose
from scripts.tex import IN_HTML

CASES = [
    ("costs $x$ here", ["x"]),
    ("two: $a_1$, $b$", ["a_1", "b"]),
    ("no: 5 $ and 6 $", []),
    (r"no: \$5 and \$6", []),
    ("code `$x$` and $y$", ["y"]),
    ("```\n$x$\n```\n\n$y$", ["y"]),
    ("    ```python\n    $x$\n    ```\n\n$y$", ["y"]),
    ("$$\na + b\n$$", ["a + b"]),
    ("over\n$a +\nb$ lines", ["a +\nb"]),
    (r"a cost $c = \$5$", [r"c = \$5"]),
    ("<!-- $x$ -->\n\n$y$", ["y"]),
]


@pytest.mark.parametrize("text, expected", CASES)
def test_formulas(text, expected):
    assert [tex for _, tex, _ in prose.formulas(text)] == expected


@pytest.mark.parametrize("text, expected", [c for c in CASES if "    ```" not in c[0]])
def test_the_site_reads_the_same_formulas(text, expected):
    import html

    extensions = ["pymdownx.superfences", "pymdownx.arithmatex"]
    arithmatex = {
        "generic": True,
        "inline_syntax": ["dollar"],
        "block_syntax": ["dollar"],
    }
    page = markdown.markdown(
        text,
        extensions=extensions,
        extension_configs={"pymdownx.arithmatex": arithmatex},
    )
    page = page.replace("<!-- $x$ -->", "")
    found = [html.unescape(m["tex"]).strip() for m in IN_HTML.finditer(page)]
    assert found == expected


def test_blanking_keeps_every_position():
    text = "a `b` c\n\n```python\nx\n```\n\nd"
    clear = prose.without_code(text)
    assert len(clear) == len(text)
    assert clear.count("\n") == text.count("\n")
    assert clear.index("d") == text.index("d")
    assert "b" not in clear and "x" not in clear


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("One. See [x](y.md) for it. Two.", "See x for it."),
        ("- item with [x](y.md)\n- other", "item with x"),
        ("Para one.\n\nHas [x](y.md), e.g.\nhere! End.", "Has x, e.g. here!"),
        ("第一句。看[x](y.md)吧。第三句。", "看x吧。"),
        ('??? question "What is [x](y.md)?"\n    Text.', "What is x?"),
        ("As [@k] says, [x](y.md).", "As says, x."),
        ("See [x](y.md) [@k, sec. 3.1]. Two.", "See x."),
    ],
)
def test_the_sentence_around_a_link(text, sentence):
    m = prose.LINK.search(text)
    assert prose.sentence_around(text, m.start(), m.end()) == sentence


@pytest.mark.parametrize(
    "text, expected",
    [
        ("**bold** and *it* and `code`", "bold and it and code"),
        ("see [the page](../a/b.md) now", "see the page now"),
        ("so [@smith2020, Eq. 7].", "so."),
        (
            "$a_i * b_i$ and snake_case_name",
            "$a_i * b_i$ and snake_case_name",
        ),
        ("two\nlines", "two lines"),
    ],
)
def test_plain(text, expected):
    assert prose.plain(text) == expected
