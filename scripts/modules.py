"""What a snippet module holds, read from its source without importing it."""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SECTION = re.compile(r"--8<-- \[(start|end):([\w-]+)\]")


@dataclass(frozen=True)
class Module:
    """A snippet module, e.g. name "policy/ppo_clipping"."""

    name: str
    path: Path

    @cached_property
    def source(self) -> str:
        """The module's text."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """The module's syntax; empty when it is not Python."""
        try:
            return ast.parse(self.source, str(self.path))
        except SyntaxError:
            return ast.Module([], [])

    @cached_property
    def error(self) -> SyntaxError | None:
        """Why the module is not Python."""
        try:
            ast.parse(self.source, str(self.path))
        except SyntaxError as error:
            return error
        return None

    @cached_property
    def functions(self) -> dict[str, ast.stmt]:
        """Functions and classes at the top level, by name, in order."""
        kinds = (ast.FunctionDef, ast.ClassDef)
        return {n.name: n for n in self.tree.body if isinstance(n, kinds)}

    @cached_property
    def products(self) -> list[str]:
        """Names of the functions that make a figure, a table or a report."""
        kinds = ("figure", "table", "report")
        return [n for n in self.functions if n.partition("_")[0] in kinds]

    @cached_property
    def sections(self) -> dict[str, tuple[int, int]]:
        """(first line, last line) of each named section."""
        found: dict[str, list[int]] = {}
        for number, line in enumerate(self.source.splitlines(), 1):
            if mark := SECTION.search(line):
                found.setdefault(mark[2], []).append(number)
        return {s: (ls[0], ls[1]) for s, ls in found.items() if len(ls) == 2}

    def within(self, section: str) -> list[str]:
        """Public functions and classes that a section shows."""
        if section not in self.sections:
            return []
        low, high = self.sections[section]
        return [
            name
            for name, node in self.functions.items()
            if low < node.lineno <= high and not name.startswith("_")
        ]

    def imports(self, root: Path) -> list["Module"]:
        """Modules of snippets/ that this one imports."""
        names = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
                names |= {f"{node.module}.{a.name}" for a in node.names}
        paths = {
            name: root / (name.replace(".", "/") + ".py")
            for name in names
            if name.startswith("snippets.")
        }
        return [
            Module(name.removeprefix("snippets.").replace(".", "/"), path)
            for name, path in sorted(paths.items())
            if path.exists()
        ]

    @cached_property
    def libraries(self) -> set[str]:
        """Top-level names of everything imported."""
        names = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.partition(".")[0])
        return names


def closure(module: Module, root: Path) -> list[Module]:
    """The module and every module of snippets/ it imports, transitively."""
    found, todo = {}, [module]
    while todo:
        here = todo.pop()
        if here.name not in found:
            found[here.name] = here
            todo += here.imports(root)
    return [found[name] for name in sorted(found)]


def all_modules(root: Path) -> dict[str, Module]:
    """Every snippets/<section>/<module>.py, by name."""
    paths = sorted((root / "snippets").glob("*/*.py"))
    modules = (
        Module(f"{p.parent.name}/{p.stem}", p) for p in paths if p.stem != "__init__"
    )
    return {module.name: module for module in modules}
