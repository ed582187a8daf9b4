"""What a snippet module holds, read from its source without importing it."""

import ast
import re
from dataclasses import dataclass
from functools import cache, cached_property
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
    def _parsed(self) -> tuple[ast.Module, SyntaxError | None]:
        try:
            return ast.parse(self.source, str(self.path)), None
        except SyntaxError as error:
            return ast.Module([], []), error

    @property
    def tree(self) -> ast.Module:
        """The module's syntax; empty when it is not Python."""
        return self._parsed[0]

    @property
    def error(self) -> SyntaxError | None:
        """Why the module is not Python."""
        return self._parsed[1]

    @property
    def about(self) -> str:
        """The first line of the module's docstring."""
        return (ast.get_docstring(self.tree) or "").partition("\n")[0]

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

    @cached_property
    def imported(self) -> set[str]:
        """Dotted names of everything imported, a function's module included."""
        names = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
                names |= {f"{node.module}.{a.name}" for a in node.names}
        return names

    @property
    def libraries(self) -> set[str]:
        """Top-level names of everything imported."""
        return {name.partition(".")[0] for name in self.imported}

    def imports(self, root: Path) -> list["Module"]:
        """Modules of snippets/ that this one imports."""
        paths = {
            name: root / (name.replace(".", "/") + ".py")
            for name in self.imported
            if name.startswith("snippets.")
        }
        return [
            module_at(name.removeprefix("snippets.").replace(".", "/"), path)
            for name, path in sorted(paths.items())
            if path.exists()
        ]


def module_at(name: str, path: Path) -> Module:
    """The module of a file, read once while the file stays as it is."""
    stat = path.stat()
    return _read(name, path, (stat.st_mtime_ns, stat.st_size))


@cache
def _read(name: str, path: Path, stamp: tuple[int, int]) -> Module:
    return Module(name, path)


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
        module_at(f"{p.parent.name}/{p.stem}", p) for p in paths if p.stem != "__init__"
    )
    return {module.name: module for module in modules}
