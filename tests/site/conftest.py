"""Builds the site once, serves it on loopback, opens it in Chromium."""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock
from playwright.sync_api import sync_playwright

from scripts import ROOT

CHROMIUM = (
    os.environ.get("CHROMIUM", ""),
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
HOME = "https://book.example/"
"""Where the tested site would be published: its canonical addresses start so."""
FLAGS = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def chromium() -> str | None:
    """The first Chromium or Chrome that this machine has."""
    found = (shutil.which(name) for name in CHROMIUM if name)
    return next((path for path in found if path), None)


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """site/, built strictly, once for all processes of this run."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    done = shared / "site-built"
    with FileLock(shared / "site.lock"):
        if not done.exists():
            run = subprocess.run(
                [sys.executable, "-m", "scripts.build"],
                cwd=ROOT,
                env=os.environ | {"SITE_URL": HOME},
                capture_output=True,
                text=True,
                check=False,
            )
            assert run.returncode == 0, run.stdout + run.stderr
            done.touch()
    return ROOT / "site"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *args):
        """Drop the log."""


@pytest.fixture(scope="session")
def url(site) -> str:
    """Address of the served site, with a trailing slash."""
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium; missing it is a failure where CI=true."""
    path = chromium()
    if not path:
        message = (
            "no Chromium: install one (Debian: apt-get install chromium; macOS: "
            "brew install --cask chromium) or set CHROMIUM=/path/to/it"
        )
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        flags = FLAGS + (["--no-sandbox"] if os.geteuid() == 0 else [])
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A fresh page whose script errors fail the test."""
    context = browser.new_context(viewport={"width": 1366, "height": 768})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []
