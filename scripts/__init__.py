"""The build: plain Python with a command line; only hooks.py knows MkDocs."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
