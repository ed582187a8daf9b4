"""YAML against a typed model: each error is a problem at the line of its field."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from scripts.problems import Problem, nearest

YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The quick reader where there is one; its messages say less."""
Path = tuple[str | int, ...]
"""Where a field is: keys and indices from the top."""
Owner = Callable[[Path, object], tuple[str, type[BaseModel], int]]
"""(name, model, length of its path) of the entry that holds a field."""


class Strict(BaseModel):
    """A schema that refuses fields it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Document:
    """What a YAML text holds, and the line of each field."""

    shown: str
    data: object
    lines: dict[Path, int]
    problems: list[Problem]

    def line(self, *path: str | int) -> int:
        """The line of a field, or of the nearest one around it."""
        known = (path[:n] for n in range(len(path), 0, -1) if path[:n] in self.lines)
        return self.lines.get(next(known, ()), 1)


def read(text: str, shown: str, name: str = "the file", first: int = 1) -> Document:
    """Read YAML that starts at a line of a file; bad text becomes a problem."""
    try:
        node, data = _parsed(text)
        found = list(_fields_of(node, first))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        said = " ".join(str(getattr(error, "problem", None) or error).split())
        said = "it refers to itself" if isinstance(error, RecursionError) else said
        what = f"{name} is not YAML: {said}"
        fix = "quote texts that hold a colon, and indent lists evenly"
        problem = Problem(shown, (mark.line if mark else 0) + first, what, fix)
        return Document(shown, {}, {}, [problem])
    lines: dict[Path, int] = {}
    twice: dict[Path, Problem] = {}
    for path, line in found:
        if path in lines and not any(path[:n] in twice for n in range(len(path))):
            what = f'"{path[-1]}" stands twice, on line {lines[path]} too'
            twice[path] = Problem(shown, line, what, "leave one, with all its entries")
        lines.setdefault(path, line)
    data = {} if data is None else data
    return Document(shown, data, lines, list(twice.values()))


def _parsed(text: str) -> tuple[yaml.Node | None, object]:
    try:
        return yaml.compose(text, Loader=YAML), yaml.load(text, Loader=YAML)
    except yaml.YAMLError:
        return yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)


def _fields_of(node, first: int, at: Path = ()) -> Iterator[tuple[Path, int]]:
    if isinstance(node, yaml.MappingNode):
        pairs = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        pairs = [(i, value, value) for i, value in enumerate(node.value)]
    else:
        return
    for name, key, value in pairs:
        yield (*at, name), key.start_mark.line + first
        yield from _fields_of(value, first, (*at, name))


def validate(
    document: Document, kind: object, owner: Owner, form: str
) -> tuple[object | None, list[Problem]]:
    """(the typed value or None, every problem); `form` says where a form is shown."""
    problems = list(document.problems)
    if problems:
        return None, problems
    try:
        return TypeAdapter(kind).validate_python(document.data), []
    except ValidationError as error:
        problems += [_problem(e, document, owner, form) for e in error.errors()]
        return None, problems


def _problem(error: dict, document: Document, owner: Owner, form: str) -> Problem:
    path = tuple(p for p in error["loc"] if p != "[key]")
    label, model, depth = owner(path, document.data)
    name = ".".join(p for p in path[depth:] if isinstance(p, str))
    parent, _, last = name.rpartition(".")
    known = [f for f in fields(model) if f.rpartition(".")[0] == parent]
    fix, said = form, error["msg"][:1].lower() + error["msg"][1:]
    if error["type"] == "missing":
        what = f'{label} has no "{name}"'
        fix = f"add a line `{last}: …`"
    elif error["type"] == "extra_forbidden":
        short = [f.rpartition(".")[2] for f in known]
        what = f'{label} has an unknown field "{name}".{nearest(last, short)}'
        fix = f"use one of {', '.join(known)}"
    elif error["type"] == "literal_error":
        words = re.findall(r"'([^']+)'", error["ctx"]["expected"])
        near = nearest(str(error["input"]), words)
        what = f'unknown {name} "{error["input"]}" of {label}.{near}'
        fix = f"use one of {', '.join(words)}"
    else:
        what = f'"{name}" of {label}: {said}' if name else f"{label}: {said}"
    return Problem(document.shown, document.line(*path), what, fix)


def fields(model: type[BaseModel], prefix: str = "") -> dict[str, type]:
    """Types of a model's fields, by dotted name."""
    names = {}
    for name, info in model.model_fields.items():
        names[prefix + name] = info.annotation
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            names |= fields(info.annotation, prefix + name + ".")
    return names
