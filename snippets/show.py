"""What every figure and table shares: size, axes, direct labels, Markdown.

Colours, line styles, fonts and width are not here: the runner sets them, for
the light and the dark page, beside the text and for a phone. A snippet says
"C0" to "C5", never a colour of its own.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def new_figure(
    height: float = 3.0, rows: int = 1, columns: int = 1, **subplots: Any
) -> tuple[Figure, Any]:
    """A figure as wide as the page has room for, and its axes.

    Args:
        height: Height in inches, the same in a wide and in a narrow drawing.
        rows: Number of panels above one another.
        columns: Number of panels side by side; more than 2 is too narrow.
        **subplots: Passed to `Figure.subplots`, e.g. sharex=True.

    Returns:
        The figure, and one Axes or an array of them as `Figure.subplots`
        returns.
    """
    figure = Figure(
        figsize=(rcParams["figure.figsize"][0], height), layout="constrained"
    )
    return figure, figure.subplots(rows, columns, **subplots)


def label(
    axes: Axes, x: float, y: float, text: str, color: str = "", **kw: Any
) -> None:
    """Write text at a data point, in a series' colour: the direct label.

    Args:
        axes: Where to write.
        x: Position in data units.
        y: Position in data units.
        text: A few words.
        color: "C0" to "C5", or empty for the colour of the axes' text.
        **kw: Passed to `Axes.annotate`, e.g. ha="right".
    """
    kw = {"xytext": (3, 3), "textcoords": "offset points"} | kw
    if color:
        kw["color"] = color
    axes.annotate(text, (x, y), **kw)


def markdown_table(
    headers: Sequence[str], rows: Iterable[Sequence[Any]], align: str = ""
) -> str:
    """A Markdown table.

    Args:
        headers: C column heads; Markdown and $TeX$ allowed.
        rows: Rows of C cells, each shown by str().
        align: One of "l", "r", "c" for each column; the first column is
            aligned left and the others right when empty.

    Returns:
        The table's lines, joined by newlines.

    Raises:
        ValueError: A row, or align, has not as many cells as headers.
    """
    align = align or "l" + "r" * (len(headers) - 1)
    marks = {"l": ":--", "r": "--:", "c": ":-:"}
    lines = [list(headers), [marks[a] for a in align]]
    lines += [[str(cell) for cell in row] for row in rows]
    for line in lines:
        if len(line) != len(headers):
            raise ValueError(
                f"{len(line)} cells under {len(headers)} heads: {line}"
            )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
