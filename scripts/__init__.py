"""The build: plain Python with a command line; only hooks.py knows MkDocs."""

from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"


@cache
def version(library: str) -> str:
    """Version of an installed library."""
    return metadata.version(library)
