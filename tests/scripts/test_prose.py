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
        ("- Item with [x](y.md).\n- Other.", "Item with x."),
        ("Para one.\n\nHas [x](y.md), e.g.\nhere! End.", "Has x, e.g. here!"),
        ("第一句。看[x](y.md)吧。第三句。", "看x吧。"),
        ('??? question "What is [x](y.md)?"\n    Text.', "What is x?"),
        ("See [x](y.md) [@k, sec. 3.1]. Two.", "See x."),
        ("All are equal. Then [x](y.md).", "Then x."),
        (
            "It is, as [x](y.md) shows (Fig. 2), *so*.",
            "It is, as x shows (Fig. 2), so.",
        ),
        (
            "- **Cost**: **two [x](y.md)** a day, or *so* on.",
            "Cost: two x a day, or so on.",
        ),
        ("**One. Two, [x](y.md), is** three.", "Two, x, is three."),
        ("It is `a*b` and $c*d*e$ by [x](y.md).", "It is `a*b` and $c*d*e$ by x."),
        ('He said "yes"\nand [x](y.md) so.', 'He said "yes" and x so.'),
        ('!!! wrong "“It is [x](y.md).”"\n    No.', "“It is x.”"),
    ],
)
def test_the_sentence_around_a_link(text, sentence):
    m = prose.LINK.search(text)
    assert prose.sentence_around(text, m.start(), m.end()) == sentence


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("| a | b |\n| --- | --- |\n| c | See [x](y.md). |", id="row"),
        pytest.param("    | a | See [x](y.md). |\n    | c | d. |", id="indented row"),
        pytest.param("/// table-caption\nSee [x](y.md).\n///", id="caption"),
        pytest.param("- item with [x](y.md)\n- other", id="words of a list"),
        pytest.param("### See [x](y.md).", id="heading"),
        pytest.param("By [x](y.md) it is:\n\n$$a$$", id="before a formula"),
        pytest.param("More: [x](y.md).", id="only a pointer"),
        pytest.param("As [@k] says, [x](y.md).", id="a citation as subject"),
        pytest.param("So it is ([x](y.md). And", id="a bracket left open"),
    ],
)
def test_no_sentence_rather_than_a_torn_one(text):
    m = prose.LINK.search(text)
    assert prose.sentence_around(text, m.start(), m.end()) == ""


@pytest.mark.parametrize(
    "text, statement",
    [
        ("One. As **verl** does [@k, a.py#L1]. Two.", "As verl does."),
        ("| a | `b` 3 [@k, a.py#L1] |\n| c | d |", "a | b 3"),
        ("- one\n- two [@k, a.py#L1]\n- three", "two"),
    ],
)
def test_the_statement_around_a_citation(text, statement):
    m = prose.CITATION.search(text)
    assert prose.statement_around(text, m.start(), m.end()) == statement


@pytest.mark.parametrize(
    "text, expected",
    [
        ("is -0.5, (-3) and [-1, 1]", "is −0.5, (−3) and [−1, 1]"),
        ("| -1 | 2 | -.5 |", "| −1 | 2 | −.5 |"),
        ("为-3，**-2** and =-4", "为−3，**−2** and =−4"),
        ("![Falls to -2.](a/b-3.svg)", "![Falls to −2.](a/b-3.svg)"),
        ("7-8, 2026-11-30, GPT-4, α-2, 1e-6, A1-A19", None),
        ("`-1`, $-1$, `top`-1 and $k$-1", None),
        ("```\n-1\n```\n\n$$\n-1\n$$\n\n<!-- -1 -->", None),
        ("[x](a/-1.md) <a id='-1'> https://x.org/?-1 [@k, f.py#L1-L2]", None),
        ('| --: |\n\n--8<-- "a/b.md"\n\n- 3 more', None),
    ],
)
def test_minus_signs(text, expected):
    assert prose.with_minus_signs(text) == (expected or text)


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
        ("`*a*` and $b*c*d$, __e__", "*a* and $b*c*d$, e"),
        ("two\nlines", "two lines"),
    ],
)
def test_plain(text, expected):
    assert prose.plain(text) == expected
