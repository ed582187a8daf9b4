"""Fonts, style sheets and KaTeX that the site serves itself: complete, light, local."""

import re
import shutil

import pytest
from fontTools.ttLib import TTFont

from scripts import assets, tex


def letters(font):
    """The characters that a font file can draw."""
    with TTFont(font) as opened:
        return {chr(code) for code in opened.getBestCmap()}


def make(root):
    """A built site of one page, with every font."""
    for name, content in (assets.fonts() | assets.katex()).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content)
        else:
            shutil.copy(content, path)
    (root / "index.html").write_text(
        '<p class="used">λ &hellip; Ž ÿ</p><p><em>naïve</em></p>'
    )
    return root


@pytest.fixture
def site(tmp_path):
    return make(tmp_path)


def test_every_file_that_a_style_sheet_names_is_served():
    files = assets.all_files()
    for sheet in ("assets/fonts.css", "assets/katex.css"):
        named = re.findall(r"url\(([^)]+)\)", files[sheet])
        assert named
        assert {f"assets/{name}" for name in named} <= set(files)
        assert "http" not in files[sheet]


def test_a_lightened_font_draws_what_is_shown_and_what_may_be_typed(site):
    fonts = site / "assets/fonts"
    serif = fonts / "source-serif-4-latin-wght-normal.woff2"
    before, size = letters(serif), serif.stat().st_size
    assert "þ" in before
    assets.lighten(site, [])
    assert letters(serif) >= {"Z", "~", "…", "ÿ", "ï"}
    assert "þ" not in letters(serif)
    italic = letters(fonts / "source-serif-4-latin-400-italic.woff2")
    assert "ï" in italic and "ÿ" not in italic
    assert serif.stat().st_size < size
    assert {"ợ", "đ"} <= letters(fonts / "source-sans-3-vietnamese-wght-normal.woff2")
    greek = letters(fonts / "source-serif-4-greek-wght-normal.woff2")
    assert "λ" in greek and "ω" not in greek


def test_signs_that_the_text_fonts_lack_are_lent(site):
    assets.lighten(site, [])
    assert letters(site / "assets/fonts/signs.woff2") >= set(assets.SIGNS)


def test_a_font_of_formulas_keeps_what_the_formulas_draw(site):
    drawn = tex.render([(r"\mathbb{E}[x]=\text{Zeit}", True)]).values()
    assets.lighten(site, [result["html"] for result in drawn])
    folder = site / "assets/katex"
    assert letters(folder / "KaTeX_AMS-Regular.woff2") == {"E"}
    assert letters(folder / "KaTeX_Math-Italic.woff2") == {"x"}
    assert set("[]=Zeit") <= letters(folder / "KaTeX_Main-Regular.woff2")


def test_two_builds_have_the_same_fonts(tmp_path):
    one, two = make(tmp_path / "one"), make(tmp_path / "two")
    for site in (one, two):
        assets.lighten(site, [])
    files = sorted(file.relative_to(one) for file in one.rglob("*.woff2"))
    assert files
    assert all((one / f).read_bytes() == (two / f).read_bytes() for f in files)


def test_a_purged_style_sheet_keeps_what_a_page_or_a_script_can_match(site):
    sheet = site / "assets/stylesheets/main.x.css"
    sheet.parent.mkdir()
    assert ".katex" in (site / "assets/katex.css").read_text()
    sheet.write_text(".used{color:red}.gone{color:blue}.added{top:0}p>b{top:1px}")
    (site / "assets/own.js").write_text('e.classList.add("added")')
    assets.lighten(site, [])
    assert sheet.read_text() == ".used{color:red}.added{top:0}"
    assert ".katex" not in (site / "assets/katex.css").read_text()
