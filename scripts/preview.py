"""The picture that a link to a page shows in a chat or a feed."""

import hashlib
import textwrap
from pathlib import Path

from scripts import CACHE, ROOT, style, version

SIZE = (1200, 630)
PAPER = "#fcfbf8"
INK, MUTED, ACCENT = style.INK["light"], style.MUTED["light"], style.SERIES["light"][0]
MARGIN = 80
LINE = 1.3
"""Height of a line of the font, in its size."""
FONT = "@fontsource/source-serif-4/files/source-serif-4-latin-{weight}-normal.woff2"


def picture(title: str, above: str, below: str) -> Path:
    """A PNG of 1200 × 630, made once.

    Args:
        title: The question, in letters of the Latin font.
        above: A few words over it, the section.
        below: A few words at the foot, the site's name.
    """
    code = Path(__file__).read_text(encoding="utf-8")
    made_of = "\n".join([title, above, below, code, ACCENT, version("pillow")])
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    made = CACHE / "preview" / f"{digest}.png"
    if not made.exists():
        _draw(title, above, below, made)
    return made


def _draw(title: str, above: str, below: str, to: Path) -> None:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", SIZE, PAPER)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 14, SIZE[1]), fill=ACCENT)
    draw.text((MARGIN, MARGIN), above, font=_font(400, 32), fill=MUTED)
    for size, width in ((64, 34), (54, 41), (46, 48), (40, 56)):
        lines = textwrap.wrap(title, width)
        if len(lines) * size * LINE <= 330:
            break
    draw.multiline_text(
        (MARGIN, 150), "\n".join(lines), font=_font(600, size), fill=INK, spacing=0
    )
    foot = (MARGIN, SIZE[1] - MARGIN)
    draw.text(foot, below, font=_font(600, 32), fill=ACCENT, anchor="ls")
    to.parent.mkdir(parents=True, exist_ok=True)
    scratch = to.with_suffix(".part")
    image.quantize(16).save(scratch, "PNG", optimize=True)
    scratch.replace(to)


def _font(weight: int, size: int):
    from fontTools.ttLib import TTFont
    from PIL import ImageFont

    source = ROOT / "node_modules" / FONT.format(weight=weight)
    made = CACHE / "fonts" / f"{source.stem}.ttf"
    if not made.exists():
        font = TTFont(source)
        font.flavor = None
        made.parent.mkdir(parents=True, exist_ok=True)
        scratch = made.with_suffix(".part")
        font.save(scratch)
        scratch.replace(made)
    return ImageFont.truetype(made, size)
