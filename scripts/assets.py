"""Third-party files that the site serves itself, taken from node_modules."""

import hashlib
import re
from pathlib import Path

from scripts import CACHE, ROOT, version

SUBSETS = ("latin", "vietnamese")
FACES = {
    "@fontsource/source-serif-4": ("400.css", "400-italic.css", "600.css"),
    "@fontsource-variable/source-sans-3": ("wght.css",),
    "@fontsource/source-code-pro": ("400.css",),
}
FEATURES = "ccmp kern liga lnum locl mark mkmk tnum".split()
"""What the style sheets use of the fonts; small capitals and the like go."""
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
                files[f"assets/fonts/{file.name}"] = _lighter(file)
                body = body.replace(path, f"fonts/{file.name}")
                faces.append(f"@font-face{{{' '.join(body.split())}}}")
    return {"assets/fonts.css": "\n".join(faces) + "\n"} | files


def _lighter(file: Path) -> Path:
    """The font without hints and the features no page uses, made once."""
    made_of = [*FEATURES, version("fonttools"), version("brotli")]
    digest = hashlib.sha256(file.read_bytes() + " ".join(made_of).encode())
    made = CACHE / "fonts" / digest.hexdigest()[:16] / file.name
    if not made.exists():
        from fontTools import subset

        options = subset.Options()
        options.layout_features = FEATURES
        options.hinting = False
        options.flavor = "woff2"
        options.recalc_timestamp = False
        made.parent.mkdir(parents=True, exist_ok=True)
        scratch = made.with_suffix(".part")
        with subset.load_font(file, options) as font:
            subsetter = subset.Subsetter(options)
            subsetter.populate(unicodes=font.getBestCmap())
            subsetter.subset(font)
            subset.save_font(font, scratch, options)
        scratch.replace(made)
    return made


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
