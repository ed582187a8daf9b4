"""Renders formulas with KaTeX, once each: HTML and MathML, no script to read."""

import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from scripts import CACHE, ROOT, write_whole

Formula = tuple[str, bool]
"""TeX source, and whether it is displayed on a line of its own."""

UNBROKEN = 12
"""Widest formula in em that may be kept on one line of a phone."""
COLUMN = 38
"""Widest display in em; estimated widths are good to 2 em, the column has 37.4."""

IN_HTML = re.compile(
    r"(?P<before>[(\[“‘«（「]*)"
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])'
    r"(?P<tex>.*?)\\[)\]]</(?P=tag)>"
    r"(?P<after>[.,;:!?)\]’”»…%、，。；：！？）」-]*)",
    re.S,
)


class TexFailed(Exception):
    """A formula that KaTeX refuses, or no KaTeX."""


def node() -> str:
    """The node program: the environment's own, else the one on PATH."""
    own = Path(sys.executable).parent / "node"
    found = str(own) if own.exists() else shutil.which("node")
    if not found or not (ROOT / "node_modules" / "katex").exists():
        raise TexFailed("KaTeX is not installed; run `make setup`")
    return found


@cache
def _key(formula: Formula, version: str) -> str:
    text = json.dumps([*formula, version])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _version() -> str:
    package = ROOT / "node_modules" / "katex" / "package.json"
    script = (Path(__file__).parent / "katex.mjs").read_text()
    return package.read_text() + script if package.exists() else ""


def _kept(store: Path) -> dict[str, dict[str, str]]:
    """What was made before, by key; read again only when it changed."""
    if not store.exists():
        return {}
    stat = store.stat()
    return _read(store, (stat.st_mtime_ns, stat.st_size))


@cache
def _read(store: Path, stamp: tuple[int, int]) -> dict[str, dict[str, str]]:
    return json.loads(store.read_text())


def render(formulas: list[Formula]) -> dict[Formula, dict[str, str]]:
    """KaTeX's {"html", "width" in em} or {"error"} for each formula.

    Results are kept in the cache; node starts only for new formulas.
    """
    store = CACHE / "tex.json"
    known = _kept(store)
    version = _version()
    keys = {formula: _key(formula, version) for formula in formulas}
    new = [f for f, key in keys.items() if key not in known]
    if new:
        run = subprocess.run(
            [node(), str(ROOT / "scripts" / "katex.mjs")],
            input=json.dumps([{"tex": t, "display": d} for t, d in new]),
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        if run.returncode:
            raise TexFailed(f"KaTeX did not run: {run.stderr.strip()}")
        known = known | dict(
            zip((keys[f] for f in new), json.loads(run.stdout), strict=True)
        )
        write_whole(store, json.dumps(known))
    return {formula: known[key] for formula, key in keys.items()}


def typeset(page: str, where: str, drawn: set[str]) -> str:
    """The HTML of a page with every arithmatex formula rendered.

    Args:
        page: The page's HTML.
        where: The page's name in a message.
        drawn: Gets KaTeX's HTML of each formula.

    Raises:
        TexFailed: KaTeX refuses a formula; the message names the page.
    """
    found = {
        (html.unescape(m["tex"]).strip(), m["open"] == "[")
        for m in IN_HTML.finditer(page)
    }
    if not found:
        return page
    rendered = render(sorted(found))

    def replace(m: re.Match) -> str:
        formula = html.unescape(m["tex"]).strip(), m["open"] == "["
        result = rendered[formula]
        if "error" in result:
            raise TexFailed(f"{where}: {formula[0]}: {result['error']}")
        drawn.add(result["html"])
        if formula[1]:
            return f'{m["before"]}<div class="tex">{result["html"]}</div>{m["after"]}'
        made = f'<span class="tex">{result["html"]}</span>'
        return _held(m["before"], made, m["after"], result["width"])

    return IN_HTML.sub(replace, page)


def _held(before: str, made: str, after: str, width: float) -> str:
    """A formula that stays on one line with its brackets and its comma.

    A short one does not break at all. A long one may break inside: there, the
    style sheet makes room for what follows beside its last part.
    """
    if not before and not after:
        return made
    if width <= UNBROKEN:
        return f'<span class="held">{before}{made}{after}</span>'
    if not after:
        return before + made
    letters = sum(3 if ord(letter) > 0x2E80 else 1 for letter in after)
    return (
        f'{before}<span class="trailed" style="--letters:{letters}">{made}'
        f'<span class="trail">{after}</span></span>'
    )
