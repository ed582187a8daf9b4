"""Keeps what a build made, by what it was made of, for the next build."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts import CACHE, write_whole

STORE = CACHE / "kept"


class Kept:
    """What one build uses of the store; the rest goes when it has ended."""

    def __init__(self, store: Path = STORE) -> None:
        """Start with nothing used."""
        self.store = store
        self.used: set[Path] = set()

    def made(self, made_of: list[str], make: Callable[[], Any]) -> Any:
        """What make() returned for the same inputs before, or returns now.

        Args:
            made_of: All that the result depends on.
            make: Returns something that JSON holds; None is not kept.
        """
        key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:32]
        path = self.store / f"{key}.json"
        self.used.add(path)
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
        result = make()
        if result is not None:
            write_whole(path, json.dumps(result))
        return result

    def sweep(self) -> None:
        """Delete what this build did not use."""
        for path in set(self.store.glob("*")) - self.used:
            path.unlink(missing_ok=True)
