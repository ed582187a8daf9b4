"""The code reference: a page per section, made by mkdocstrings.

mkdocstrings is the slowest part of a build, so what it made of a module is
kept, and used again while the module stays as it is.
"""

import hashlib
import html
import json
import os
import re

from scripts import CACHE, version, write_whole
from scripts.catalog import Answer, Book
from scripts.modules import Module

STORE = CACHE / "reference"
MADE_BY = ("mkdocstrings", "mkdocstrings-python", "griffelib", "pymdown-extensions")
BLOCK = re.compile(r"<!-- module (?P<key>\w+) -->(?P<text>.*?)<!-- /module -->", re.S)
AUTOREF = re.compile(r"</?autoref\b[^>]*>")
NOT_A_NAME = re.compile(
    r'<a\b[^>]*class="headerlink".*?</a>|<span class="doc doc-labels">.*?</small>\s*'
    r"</span>|<[^>]+>",
    re.S,
)
HEADING = re.compile(
    r'<h(?P<level>[23]) id="(?P<id>[^"]+)"[^>]*>(?P<text>.*?)</h[23]>', re.S
)


def relative(page: str, target: str) -> str:
    """Address of one page of the site, as written on another."""
    bare, hash_, anchor = target.partition("#")
    path = os.path.relpath("/" + bare, "/" + page)
    path = "./" if path == "." else path + ("/" if bare.endswith("/") else "")
    return path + hash_ + anchor


def link(page: str, target: str, text: str, **attributes: str) -> str:
    """An HTML link between two pages of the site; the text is escaped."""
    more = "".join(
        f' {name.rstrip("_")}="{html.escape(value)}"'
        for name, value in attributes.items()
        if value
    )
    return f'<a href="{relative(page, target)}"{more}>{html.escape(text)}</a>'


def function_link(url: str, module: str, function: str) -> str:
    """A link to a function in the reference."""
    anchor = f"snippets.{module.replace('/', '.')}.{function}"
    target = f"reference/{module.partition('/')[0]}/#{anchor}"
    return f'<a href="{relative(url, target)}"><code>{function}</code></a>'


def page(book: Book, section: str) -> str:
    """The functions of a section's snippets, each with the page that shows it."""
    modules = [m for m in book.modules.values() if m.name.startswith(section + "/")]
    blocks = [_block(book, section, module) for module in modules]
    return "\n\n".join([f"# Code: {book.sections[section]['title']}", *blocks]) + "\n"


def _block(book: Book, section: str, module: Module) -> str:
    """The Markdown of one module between two marks; none if its HTML is kept."""
    text = _markdown(book, section, module)
    config = book.root / "mkdocs.yml"
    made_of = [text, module.source, *(version(name) for name in MADE_BY)]
    made_of += [config.read_text(encoding="utf-8")] if config.exists() else []
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:32]
    if (STORE / f"{key}.html").exists():
        text = ""  # fill() puts the kept HTML here
    return f"<!-- module {key} -->\n\n{text}\n\n<!-- /module -->"


def _markdown(book: Book, section: str, module: Module) -> str:
    dotted = f"snippets.{module.name.replace('/', '.')}"
    shown = shown_in(book, module)
    parts = [f"## {module.name.partition('/')[2]} {{ #{dotted} }}"]
    for name in module.functions:
        if name.startswith("_"):
            continue
        parts.append(f"::: {dotted}.{name}")
        if name in shown:
            links = ", ".join(
                link(f"reference/{section}/", a.url, a.meta.title) for a in shown[name]
            )
            parts.append(f'<p class="shown-in">Shown in {links}</p>')
    return "\n\n".join(parts)


def fill(page_html: str, *, keep: bool) -> str:
    """Put what is kept of each module in its place; keep what is new, or not.

    A cross-reference is resolved only while its target is rendered too, so
    a page would change with what is kept: none has any.
    """

    def put(m: re.Match) -> str:
        path = STORE / f"{m['key']}.html"
        if path.exists():
            return path.read_text(encoding="utf-8")
        text = AUTOREF.sub("", m["text"]).strip()
        if keep:
            write_whole(path, text)
        return text

    return BLOCK.sub(put, page_html)


def contents(page_html: str) -> list[dict]:
    """Headings of levels 2 and 3, as MkDocs wants them for its contents."""
    tokens: list[dict] = []
    for m in HEADING.finditer(page_html):
        name = NOT_A_NAME.sub("", m["text"]).strip()
        token = {"level": int(m["level"]), "id": m["id"], "name": name, "children": []}
        if token["level"] == 3 and tokens:
            tokens[-1]["children"].append(token)
        else:
            tokens.append(token)
    return tokens


def shown_in(book: Book, module: Module) -> dict[str, list[Answer]]:
    """Which answers show each function of a module."""
    found: dict[str, list[Answer]] = {}
    for answer in book.ordered:
        for embed in answer.embeds:
            if embed.product and embed.product["module"] == module.name:
                names = [embed.product["function"]]
            elif embed.path == module.name + ".py":
                names = module.within(embed.section)
            else:
                continue
            for name in names:
                if answer not in found.setdefault(name, []):
                    found[name].append(answer)
    return found


def index(book: Book) -> str:
    """The sections of the reference."""
    lines = [
        f"- [{book.sections[s]['title']}](reference/{s}.md)" for s in sections(book)
    ]
    intro = (
        "Every figure, table and number in the answers is made by these "
        "functions; they are tested and typed."
    )
    return f"# Code reference\n\n{intro}\n\n" + "\n".join(lines) + "\n"


def sections(book: Book) -> list[str]:
    """Sections that have snippets."""
    names = {name.partition("/")[0] for name in book.modules}
    return [section for section in book.sections if section in names]
