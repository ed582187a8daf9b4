"""One thing to fix: where it is, what it is, the nearest match, the way out."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Problem:
    """A finding at a line of a file; sorts by place."""

    path: str
    line: int
    what: str
    fix: str

    def __str__(self) -> str:
        """Two lines: `file:line: what` and the way out."""
        return f"{self.path}:{self.line}: {self.what}\n    fix: {self.fix}"


def nearest(word: str, words: Iterable[str]) -> str:
    """' Did you mean "x"?' for the closest of the words, or nothing."""
    close = difflib.get_close_matches(word, sorted(words), n=1)
    return f' Did you mean "{close[0]}"?' if close else ""


def report(problems: Iterable[Problem]) -> str:
    """All problems, sorted by place, and their number."""
    lines = [str(problem) for problem in sorted(set(problems))]
    return "\n".join([*lines, f"{len(lines)} problem(s)"])
