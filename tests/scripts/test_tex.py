"""Formulas: widths without a browser, and what stays on one line with them."""

import pytest

from scripts import tex


def typeset(markup):
    return tex.typeset(markup, "page", set())


def formula(source, tag="span"):
    left, right = (r"\(", r"\)") if tag == "span" else (r"\[", r"\]")
    return f'<{tag} class="arithmatex">{left}{source}{right}</{tag}>'


@pytest.mark.parametrize(
    "markup, held",
    [
        (f"if {formula('x')}, then", ('<span class="held">', "</span>,</span> then")),
        (f"({formula('x')}) is", ('<span class="held">(', "</span>)</span> is")),
        (f"若{formula('x')}，则", ('<span class="held">', "</span>，</span>则")),
    ],
)
def test_a_formula_keeps_its_comma_and_its_brackets(markup, held):
    start, end = held
    made = typeset(markup)
    assert made.count('class="held"') == 1
    assert start + ("" if start.endswith("(") else '<span class="tex">') in made
    assert end in made


def test_a_long_formula_may_break_but_not_before_its_comma():
    made = typeset(f"({formula('a+b+c+d+e+f+g+h+i+j+k+l')}), so")
    assert made.startswith('(<span class="trailed" style="--letters:2">')
    assert made.endswith('<span class="trail">),</span></span> so')


@pytest.mark.parametrize("markup", [f"a {formula('x')} b", formula("x", "div") + "."])
def test_a_formula_between_spaces_or_on_its_own_line_is_left(markup):
    assert 'class="held"' not in typeset(markup)


def test_what_was_drawn_is_told():
    drawn = set()
    tex.typeset(formula("x") + formula("x") + formula("y"), "page", drawn)
    assert len(drawn) == 2


@pytest.mark.parametrize(
    "source, em",
    # measured in Chromium 156 with KaTeX 0.19.1
    [
        (r"\mathbb E", 0.667),
        (r"R_i-\bar R=\frac{G-1}{G}\,\big(R_i-\bar R_{-i}\big)", 12.07),
    ],
)
def test_the_width_of_a_display_is_near_that_of_a_browser(source, em):
    assert tex.render([(source, True)])[source, True]["width"] == pytest.approx(
        em, rel=0.05, abs=0.1
    )


def test_a_longer_formula_is_wider():
    widths = [tex.render([(s, True)])[s, True]["width"] for s in ("a+b", "a+b+c")]
    assert widths[0] < widths[1]
