"""Third-party files that the site serves itself, taken from node_modules."""

import hashlib
import html
import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from scripts import CACHE, ROOT, version, write_whole
from scripts.tex import node

SUBSETS = ("latin", "vietnamese", "greek")
FACES = {
    "@fontsource-variable/source-serif-4": ("wght.css",),
    "@fontsource/source-serif-4": ("400-italic.css",),
    "@fontsource-variable/source-sans-3": ("wght.css",),
    "@fontsource/source-code-pro": ("400.css",),
}
FEATURES = "ccmp kern liga lnum locl mark mkmk tnum".split()
"""What the style sheets use of the fonts; small capitals and the like go."""
WEIGHTS = (400, 600)
"""Lightest and heaviest that the style sheets ask of a variable font."""
SIGNS = "←↑→↓↔↩⇒∀∃∇∈∗∝∞∣∥∼≈≡≤≥≪≫⋅⌈⌉⌊⌋ℓ‖"
"""Signs in running text that the text fonts lack; KaTeX's main font lends them."""
TYPED = "".join(chr(c) for c in range(0x20, 0x7F)) + (
    "ăâđêôơưàáảãạằắẳẵặầấẩẫậèéẻẽẹềếểễệìíỉĩịòóỏõọồốổỗộờớởỡợùúủũụừứửữựỳýỷỹỵ"
)
"""What a reader may type into the search, whether a page holds it or not."""
ASCII = 0x7F - 0x20
SLANTED = re.compile(r'<em>(.*?)</em>|<p class="admonition-title">(.*?)</p>', re.S)
"""What is set in italics: emphasis and the statements of wrong answers."""
PLAIN = re.compile(r"-greek-|-italic$")
"""Fonts of which so little is shown that kerning would weigh more than it is seen."""
ENTITY = re.compile(r"&#?\w+;")
TAG = re.compile(r"<[a-z][^>]*>")
WORD = re.compile(r"[\w-]+")
LEAF = re.compile(r'<span class="([^"]*)"[^>]*>([^<]+)</span>')
OWN_CLASS = {
    "KaTeX_Math-Italic": {"mathnormal"},
    "KaTeX_Math-BoldItalic": {"boldsymbol"},
    "KaTeX_AMS-Regular": {"amsrm", "mathbb", "textbb"},
    "KaTeX_Main-Bold": {"mathbf", "textbf"},
    "KaTeX_Main-Italic": {"mathit", "textit"},
    "KaTeX_Typewriter-Regular": {"mathtt", "texttt"},
    "KaTeX_Caligraphic-Regular": {"mathcal"},
    "KaTeX_SansSerif-Regular": {"mathsf", "textsf"},
    "KaTeX_Script-Regular": {"mathscr", "textscr"},
}
"""Fonts of formulas that only these classes of KaTeX's HTML use."""
FACE = re.compile(
    r"/\*\s*(?P<name>[\w-]+)\s*\*/\s*@font-face\s*\{(?P<body>.*?)\}", re.S
)
WOFF2 = re.compile(r"url\((?P<path>[^)]+?\.woff2)\)")


class AssetMissing(Exception):
    """A package that the site needs is not installed."""


def package(name: str, root: Path = ROOT) -> Path:
    """Folder of an installed package."""
    path = root / "node_modules" / name
    if not path.exists():
        raise AssetMissing(f"{name} is not installed; run `make setup`")
    return path


def _woff2_only(body: str) -> str:
    """A font face whose only source is its WOFF2 file."""
    first = WOFF2.search(body)
    source = f'src:url({first["path"]}) format("woff2")'
    return re.sub(r"src:[^;}]+", lambda _: source, body)


def fonts(root: Path = ROOT) -> dict[str, str | Path]:
    """The style sheet of the text fonts and its files, by site path."""
    faces, files = [], {}
    for name, sheets in FACES.items():
        folder = package(name, root)
        for sheet in sheets:
            for face in FACE.finditer((folder / sheet).read_text()):
                if not any(_is(face["name"], s) for s in SUBSETS):
                    continue
                body = _woff2_only(face["body"])
                path = WOFF2.search(body)["path"]
                file = folder / path
                files[f"assets/fonts/{file.name}"] = file
                body = body.replace(path, f"fonts/{file.name}")
                faces.append(f"@font-face{{{' '.join(body.split())}}}")
    main = package("katex", root) / "dist/fonts/KaTeX_Main-Regular.woff2"
    files["assets/fonts/signs.woff2"] = main
    codes = ",".join(f"U+{ord(sign):X}" for sign in SIGNS)
    faces.append(
        '@font-face{font-family:"Signs";font-display:swap;'
        f'src:url(fonts/signs.woff2) format("woff2");unicode-range:{codes}}}'
    )
    return {"assets/fonts.css": "\n".join(faces) + "\n"} | files


def lighten(site: Path, formulas: Iterable[str]) -> None:
    """Leave in fonts and style sheets of a built site what its pages use.

    Args:
        site: The folder of the built site.
        formulas: KaTeX's HTML of every formula on it.
    """
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    _lighten_fonts(site, pages, formulas)
    _purge(site, pages)


def _lighten_fonts(site: Path, pages: list[str], formulas: Iterable[str]) -> None:
    text, slanted = set(TYPED), set(TYPED[:ASCII])
    for source in pages:
        text |= set(source)
        text |= set(html.unescape("".join(set(ENTITY.findall(source)))))
        found = "".join(map("".join, SLANTED.findall(source)))
        slanted |= set(html.unescape(found))
    leaves = [
        (set(classes.split()), letters)
        for formula in set(formulas)
        for classes, letters in LEAF.findall(formula)
    ]
    for file in sorted((site / "assets").glob("*/*.woff2")):
        wanted = slanted if file.stem.endswith("italic") else text
        if file.name == "signs.woff2":
            wanted = set(SIGNS)
        elif file.parent.name == "katex":
            own = OWN_CLASS.get(file.stem)
            drawn = (t for classes, t in leaves if not own or own & classes)
            wanted = set(html.unescape("".join(drawn)))
        plain = PLAIN.search(file.stem) is not None
        lighter = _subset(file, "".join(sorted(wanted)), plain=plain)
        file.write_bytes(lighter.read_bytes())


def _purge(site: Path, pages: list[str]) -> None:
    """Drop from others' style sheets what no page can match."""
    tags = set().union(*map(TAG.findall, pages))
    words = set(WORD.findall(" ".join(tags)))
    for script in (site / "assets").rglob("*.js"):  # classes that scripts add
        words |= set(WORD.findall(script.read_text(encoding="utf-8")))
    sheets = [*site.glob("assets/stylesheets/*.css"), site / "assets/katex.css"]
    for file in sheets:
        css = file.read_text(encoding="utf-8")
        given = json.dumps({"css": css, "words": "\n".join(sorted(words))})
        file.write_text(_purged(given), encoding="utf-8")


def _purged(given: str) -> str:
    """What scripts/purge.mjs makes of its input, made once."""
    script = ROOT / "scripts" / "purge.mjs"
    tool = (package("purgecss") / "package.json").read_text(encoding="utf-8")
    made_of = script.read_text(encoding="utf-8") + tool + given
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    made = CACHE / "css" / f"{digest}.css"
    if not made.exists():
        run = subprocess.run(
            [node(), str(script)],
            input=given,
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
        )
        write_whole(made, run.stdout)
    return made.read_text(encoding="utf-8")


def _subset(file: Path, letters: str, *, plain: bool) -> Path:
    """A font with these letters, made once; plain: without any feature."""
    features = [] if plain else FEATURES
    made_of = [
        *features,
        str(WEIGHTS),
        version("fonttools"),
        version("brotli"),
        letters,
    ]
    digest = hashlib.sha256(file.read_bytes() + " ".join(made_of).encode())
    made = CACHE / "fonts" / f"{file.stem}-{digest.hexdigest()[:16]}.woff2"
    if made.exists():
        return made
    from fontTools import subset
    from fontTools.varLib.instancer import instantiateVariableFont

    options = subset.Options()
    options.layout_features = features
    options.hinting = False
    options.flavor = "woff2"
    options.recalc_timestamp = False
    made.parent.mkdir(parents=True, exist_ok=True)
    scratch = made.with_suffix(".part")
    with subset.load_font(file, options) as font:
        _lend_double_bar(font)
        subsetter = subset.Subsetter(options)
        subsetter.populate(text=letters)
        subsetter.subset(font)
        if "fvar" in font:
            instantiateVariableFont(font, {"wght": WEIGHTS}, inplace=True)
        subset.save_font(font, scratch, options)
    scratch.replace(made)
    return made


def _lend_double_bar(font) -> None:
    """Let ‖ be drawn as ∥ where a font of formulas has only the second."""
    for table in font["cmap"].tables:
        if table.isUnicode() and 0x2225 in table.cmap:
            table.cmap.setdefault(0x2016, table.cmap[0x2225])


def _is(face: str, subset: str) -> bool:
    """Whether "source-serif-4-latin-wght-normal" is of the subset "latin"."""
    return re.search(rf"-{subset}-(?:wght|\d)", face) is not None


def katex(root: Path = ROOT) -> dict[str, str | Path]:
    """KaTeX's style sheet and its WOFF2 fonts, by site path."""
    folder = package("katex", root) / "dist"
    css = (folder / "katex.min.css").read_text()
    css = re.sub(
        r"@font-face\{(.*?)\}",
        lambda m: f"@font-face{{{_woff2_only(m[1])}}}",
        css,
    )
    css = css.replace("url(fonts/", "url(katex/")
    files = {f"assets/katex/{p.name}": p for p in sorted(folder.glob("fonts/*.woff2"))}
    return {"assets/katex.css": css} | files


def scripts(root: Path = ROOT) -> dict[str, str | Path]:
    """The search library, by site path."""
    path = package("minisearch", root) / "dist" / "es" / "index.js"
    return {"assets/minisearch.js": path}


def all_files(root: Path = ROOT) -> dict[str, str | Path]:
    """Every third-party file: text, or the path to copy, by site path."""
    return fonts(root) | katex(root) | scripts(root)
