"""How figures look: the page's font and palette, wide and for a phone."""

import re
from pathlib import Path

from scripts import CACHE, ROOT
from scripts.prose import with_minus_signs

FONT_FILE = (
    ROOT
    / "node_modules/@fontsource-variable/source-sans-3/files"
    / "source-sans-3-latin-wght-normal.woff2"
)
SERIES = {
    "light": (
        "#0b6e6e",
        "#c2410c",
        "#3f51b5",
        "#8a6d00",
        "#a21caf",
        "#57606a",
    ),
    "dark": (
        "#5cc8be",
        "#f59e6c",
        "#9fa8ff",
        "#e0c04c",
        "#e58bf0",
        "#9aa4ad",
    ),
}
INK = {"light": "#1f2328", "dark": "#e6e4df"}
MUTED = {"light": "#57606a", "dark": "#9aa4ad"}
LINES = ("-", (0, (5, 2)), (0, (1, 1.6)), "-.", (0, (7, 2, 1, 2, 1, 2)), "-")
WIDTHS = (5.2, 3.375)
"""Inches of the two drawings: beside the text, and in a window of 360 px."""
SMALLEST_PT = 8.25
"""11 px of a drawing that is shown at its own size."""


def font_file() -> Path | None:
    """The page's font as a TrueType file of weight 400, made once."""
    if not FONT_FILE.exists():
        return None
    made = CACHE / "fonts" / "source-sans-3-400.ttf"
    if not made.exists():
        from fontTools.ttLib import TTFont
        from fontTools.varLib.instancer import instantiateVariableFont

        font = TTFont(FONT_FILE)
        font.flavor = None
        font = instantiateVariableFont(font, {"wght": 400}, updateFontNames=False)
        made.parent.mkdir(parents=True, exist_ok=True)
        scratch = made.with_suffix(".part")
        font.save(scratch)
        scratch.replace(made)
    return made


def use_font() -> str:
    """Make the font known to matplotlib; returns the family to ask for."""
    from matplotlib import font_manager

    path = font_file()
    if path is None:
        return "DejaVu Sans"
    name = font_manager.FontProperties(fname=str(path)).get_name()
    known = {f.name for f in font_manager.fontManager.ttflist}
    if name not in known:
        font_manager.fontManager.addfont(str(path))
    return name


def rc(width: float) -> dict:
    """Matplotlib's settings for a drawing of a width in inches, in light colours."""
    from cycler import cycler

    ink, muted = INK["light"], MUTED["light"]
    body, ticks = (10.5, 9.5) if width == WIDTHS[0] else (9.0, 8.5)
    return {
        "font.family": [use_font(), "DejaVu Sans"],
        "font.size": body,
        "mathtext.fontset": "stix",
        "axes.titlesize": body + 1,
        "axes.titlelocation": "left",
        "axes.titlepad": 9,
        "axes.labelsize": body,
        "xtick.labelsize": ticks,
        "ytick.labelsize": ticks,
        "legend.fontsize": ticks,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": muted,
        "axes.linewidth": 0.8,
        "axes.labelcolor": ink,
        "axes.titlecolor": ink,
        "text.color": ink,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "hatch.color": ink,
        "hatch.linewidth": 0.6,
        "patch.edgecolor": ink,
        "lines.linewidth": 1.9,
        "axes.prop_cycle": cycler(color=SERIES["light"]) + cycler(linestyle=LINES),
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "svg.fonttype": "path",
        "figure.constrained_layout.use": False,
        "figure.figsize": (width, 3.0),
    }


def darkened(svg: str) -> str:
    """The same drawing in the dark theme's colours."""
    light = (*SERIES["light"], INK["light"], MUTED["light"])
    dark = (*SERIES["dark"], INK["dark"], MUTED["dark"])
    to = dict(zip(light, dark, strict=True))
    colours = re.compile(rf"(?:{'|'.join(to)})\b")
    return colours.sub(lambda m: to[m[0]], svg)


def finish_texts(figure) -> None:
    """Give texts real minus signs; let titles and axis labels take a second line."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_text(with_minus_signs(text.get_text()))
    for axes in figure.axes:
        own = [t for t in axes.get_children() if isinstance(t, Text)]
        titles = [text for text in own if text not in axes.texts]
        for text in [*titles, axes.xaxis.label, axes.yaxis.label]:
            text.set_wrap(True)


def refuse_small_text(figure) -> None:
    """Raise ValueError for a text that is too small on a phone."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_fontsize() < SMALLEST_PT:
            raise ValueError(
                f"text {text.get_text()!r} has {text.get_fontsize():g} pt, "
                f"less than {SMALLEST_PT}: leave its size to the style"
            )
