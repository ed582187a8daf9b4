"""The build: plain Python with a command line; only hooks.py knows MkDocs."""

import os
from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"


@cache
def version(library: str) -> str:
    """Version of an installed library."""
    return metadata.version(library)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that nobody ever reads a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
