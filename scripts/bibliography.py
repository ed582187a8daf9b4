"""The bibliography: every cited work once, read from docs/references.bib."""

import re
from dataclasses import dataclass
from pathlib import Path

import bibtexparser

from scripts.problems import Problem

ENTRY = re.compile(r"^@\w+\{(?P<key>[^,\s]+)\s*,", re.M)
REPAIR = "run `make check FIX=1`, or move the entry"


@dataclass(frozen=True)
class Source:
    """One cited work; software is cited at a commit."""

    key: str
    line: int
    kind: str
    title: str
    authors: tuple[str, ...]
    year: str
    url: str
    commit: str = ""

    @property
    def label(self) -> str:
        """Author and year, or name@commit, as shown in the text."""
        if self.commit:
            return f"{self.title}@{self.commit[:7]}"
        more = " et al." if len(self.authors) > 2 else ""
        names = self.authors[:1] if more else self.authors
        return f"{' & '.join(names)}{more} {self.year}"

    def link(self, place: str) -> tuple[str, str]:
        """(text, href) of a citation; a place in software leads to its lines."""
        if not place:
            return self.label, f"#source-{self.key}"
        if not self.commit:
            return f"{self.label}, {place}", f"#source-{self.key}"
        path, _, lines = place.partition("#")
        name = path.rsplit("/", 1)[-1]
        shown = " " + lines.replace("-L", "–") if lines else ""
        kind = "blob" if "." in name or lines else "tree"
        href = f"{self.url}/{kind}/{self.commit}/{place}"
        return f"{self.label} {name}{shown}", href


def surname(name: str) -> str:
    """The family name of "Family, Given" or "Given Family"."""
    name = name.strip()
    if name.startswith("{"):
        return name.strip("{}")
    return name.split(",")[0] if "," in name else name.split()[-1]


def read(path: Path) -> tuple[dict[str, Source], list[Problem]]:
    """All sources by key, and what is wrong with the file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = {m["key"]: text.count("\n", 0, m.start()) + 1 for m in ENTRY.finditer(text)}
    library = bibtexparser.parse_string(text)
    problems = [
        Problem(
            str(path),
            block.start_line + 1,
            f"cannot read this entry ({type(block).__name__})",
            "write @type{key, field = {value}, ...} with a key used once",
        )
        for block in library.failed_blocks
    ]
    sources = {}
    for entry in library.entries:
        source, missing = _source(entry, lines.get(entry.key, 1))
        sources[entry.key] = source
        problems += [
            Problem(
                str(path),
                source.line,
                f'source "{entry.key}" has no {name}',
                f"add {name} = {{...}} to the entry",
            )
            for name in missing
        ]
    keys = [m["key"] for m in ENTRY.finditer(text)]
    for before, key in zip(keys, keys[1:], strict=False):
        if before.lower() > key.lower():
            problems.append(
                Problem(
                    str(path),
                    lines[key],
                    f'source "{key}" stands after "{before}"; keys are sorted',
                    REPAIR,
                )
            )
            break
    return sources, problems


def _source(entry, line: int) -> tuple[Source, list[str]]:
    field = {name: f.value for name, f in entry.fields_dict.items()}
    names = re.split(r"\s+and\s+", field.get("author", ""))
    authors = tuple(surname(n) for n in names if n and n != "others")
    if names[-1] == "others":
        authors += ("others", "others")
    url = field.get("url", "")
    if not url and "eprint" in field:
        url = f"https://arxiv.org/abs/{field['eprint']}"
    commit = field.get("version", "") if entry.entry_type == "software" else ""
    year = field.get("year", "") or field.get("date", "")[:4]
    needed = {
        "title": field.get("title"),
        "url or eprint": url,
    }
    if entry.entry_type == "software":
        full = re.fullmatch(r"[0-9a-f]{40}", commit)
        needed["version of 40 hex digits"] = full
    else:
        needed["author"] = authors
        needed["year or date"] = year
    missing = [name for name, value in needed.items() if not value]
    title = re.sub(r"[{}]|\\(?=[%&_#$])", "", field.get("title", ""))
    return (
        Source(
            entry.key,
            line,
            entry.entry_type,
            title,
            authors,
            year,
            url,
            commit,
        ),
        missing,
    )


def sort(path: Path) -> bool:
    """Rewrite the file with its entries in order of key; True if changed."""
    text = path.read_text(encoding="utf-8")
    starts = [m.start() for m in ENTRY.finditer(text)]
    head = text[: starts[0]] if starts else text
    parts = [
        text[a:b].strip() for a, b in zip(starts, [*starts[1:], len(text)], strict=True)
    ]
    parts.sort(key=lambda part: ENTRY.match(part)["key"].lower())
    result = head + "\n".join(parts) + "\n"
    if result != text:
        path.write_text(result, encoding="utf-8")
    return result != text
