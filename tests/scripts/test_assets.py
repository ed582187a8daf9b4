"""Fonts and KaTeX that the site serves itself: complete, light, local."""

import re

from fontTools.ttLib import TTFont

from scripts import ROOT, assets


def test_every_file_that_a_style_sheet_names_is_served():
    files = assets.all_files()
    for sheet in ("assets/fonts.css", "assets/katex.css"):
        named = re.findall(r"url\(([^)]+)\)", files[sheet])
        assert named
        assert {f"assets/{name}" for name in named} <= set(files)
        assert "http" not in files[sheet]


def test_lighter_fonts_hold_the_same_letters():
    for name, path in assets.fonts().items():
        if not name.endswith(".woff2"):
            continue
        (original,) = (ROOT / "node_modules").glob(f"@fontsource*/*/files/{path.name}")
        assert path.stat().st_size < original.stat().st_size
        with TTFont(path) as lighter, TTFont(original) as whole:
            assert set(lighter.getBestCmap()) == set(whole.getBestCmap())


def test_vietnamese_has_its_own_face_and_greek_has_none():
    css = assets.fonts()["assets/fonts.css"]
    assert "vietnamese" in css and "greek" not in css and "cyrillic" not in css
