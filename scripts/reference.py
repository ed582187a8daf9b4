"""The code reference: a page per module, made by mkdocstrings; the files served."""

import html
import os
import re
from pathlib import Path

from scripts.catalog import Answer, Book
from scripts.modules import Module

MADE_BY = ("mkdocstrings", "mkdocstrings-python", "griffelib")
"""What a page of the reference depends on beside the module's source."""
AUTOREF = re.compile(r"</?autoref\b[^>]*>")
FOLDER = "code/"
"""Where on the site the files of snippets/ and tests/snippets/ stand."""


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
    target = f"reference/{module}/#snippets.{module.replace('/', '.')}.{function}"
    return f'<a href="{relative(url, target)}"><code>{function}</code></a>'


def file_link(url: str, path: str) -> str:
    """A link to a served file of the project, for example "snippets/show.py"."""
    return f'<a href="{relative(url, FOLDER + path)}"><code>{path}</code></a>'


def test_path(module: str) -> str:
    """The test file of a snippet module."""
    section, _, stem = module.partition("/")
    return f"tests/snippets/{section}/test_{stem}.py"


def files(root: Path) -> dict[str, Path]:
    """Every file of code that is served, by site path."""
    found = [*root.glob("snippets/**/*.py"), *root.glob("tests/snippets/**/*.py")]
    return {FOLDER + p.relative_to(root).as_posix(): p for p in sorted(found)}


def page(book: Book, module: Module) -> str:
    """What a module offers: each function, its contract, who shows it."""
    url = f"reference/{module.name}/"
    dotted = f"snippets.{module.name.replace('/', '.')}"
    shown = shown_in(book, module)
    source, test = f"snippets/{module.name}.py", test_path(module.name)
    parts = [
        f"# {module.name}.py",
        module.about,
        f"<p>The file: {file_link(url, source)}. Its test: {file_link(url, test)}.</p>",
    ]
    for name in listed(book, module):
        parts.append(f"::: {dotted}.{name}")
        if name in shown:
            links = ", ".join(link(url, a.url, a.meta.title) for a in shown[name])
            parts.append(f'<p class="shown-in">Shown in {links}</p>')
    return "\n\n".join(parts) + "\n"


def without_references(page_html: str) -> str:
    """A page without cross-references between functions.

    One is resolved only while its target is rendered too, so a page would
    change with what is kept of others.
    """
    return AUTOREF.sub("", page_html)


def listed(book: Book, module: Module) -> list[str]:
    """Functions that an answer shows or another module uses, in their order."""
    wanted = set(shown_in(book, module))
    dotted = f"snippets.{module.name.replace('/', '.')}."
    for other in book.modules.values():
        wanted |= {
            name.removeprefix(dotted)
            for name in other.imported
            if name.startswith(dotted)
        }
    return [name for name in module.functions if name in wanted]


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
    """The modules, by section."""
    parts = [
        "# Code reference",
        "Every figure, table and number in the answers is made by these modules. "
        "A page holds what the answers show of a module and what others use of "
        "it; the whole file and its test are linked there.",
    ]
    for section, modules in by_section(book).items():
        lines = [
            f"- [{module.name.partition('/')[2]}](reference/{module.name}.md): "
            f"{module.about}"
            for module in modules
        ]
        parts += [f"## {book.sections[section]['title']}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def by_section(book: Book) -> dict[str, list[Module]]:
    """The modules of each section that has some."""
    found: dict[str, list[Module]] = {section: [] for section in book.sections}
    for name, module in book.modules.items():
        found.setdefault(name.partition("/")[0], []).append(module)
    return {section: modules for section, modules in found.items() if modules}
