"""`make bench`: how long builds and edits take, how heavy a page is.

Works in a copy of the checkout, so that nothing here changes, however it
ends. The plain build beside ours is stock Material with the same extensions
over the same Markdown, generated pages included, and nothing else of ours.
"""

import functools
import gzip
import http.server
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from scripts import ROOT, catalog, pages

HOST = "127.0.0.1"
LINKED = (".venv", "node_modules")
LEFT_OUT = (*LINKED, ".git", ".cache", "site", "__pycache__")
ROUNDS = 3
PATIENCE_S = 120
VISITS, AIMS = ("first", "second"), (200, 60)
"""Kilobytes at most for the first answer that a reader opens, and the next."""
TEXT = (".html", ".css", ".js", ".json", ".svg", ".xml", ".txt", ".md")


class Failed(Exception):
    """A step went wrong; the text is what it printed."""


def copy(root: Path, to: Path) -> None:
    """Copy the checkout without what is built; link what is installed."""
    shutil.copytree(root, to, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for name in LINKED:
        (to / name).symlink_to(root / name)


def cpu() -> float:
    """Seconds of processor time that ended child processes have used."""
    used = os.times()
    return used.children_user + used.children_system


def timed(words: list[str], folder: Path) -> float:
    """Seconds that `python -m …` takes in a folder.

    Raises:
        Failed: It returned an error.
    """
    started = time.perf_counter()
    run = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise Failed(f"{' '.join(words)}\n{run.stdout}{run.stderr}")
    return time.perf_counter() - started


def plain_config(config: str) -> str:
    """A stock Material configuration with the extensions of ours."""
    extensions = re.search(r"^markdown_extensions:\n(?:[ #].*\n)+", config, re.M)
    return (
        "site_name: plain\ntheme: material\nplugins: [search]\n"
        f"site_dir: .cache/plain-site\ndocs_dir: .cache/plain\n{extensions[0]}"
    )


def write_plain(copied: Path) -> int:
    """Write the plain build's Markdown and configuration; return its pages."""
    docs = copied / ".cache" / "plain"
    shutil.rmtree(docs, ignore_errors=True)
    shutil.copytree(copied / "docs", docs)
    book = catalog.load(copied)
    made = pages.generated(book)
    products = copied / ".cache" / "products"
    for answer in book.sound.values():
        uri = f"{answer.section}/{answer.slug}.md"
        made[uri] = pages.compose(book, answer, products)
    for uri, text in made.items():
        (docs / uri).parent.mkdir(parents=True, exist_ok=True)
        (docs / uri).write_text(text, encoding="utf-8")
    for path in docs.rglob("*.md"):  # stock Material has no template of ours
        text = path.read_text(encoding="utf-8")
        stock = re.sub(r"^template:.*\n", "", text, flags=re.M)
        path.write_text(stock, encoding="utf-8")
    config = (copied / "mkdocs.yml").read_text(encoding="utf-8")
    (copied / "plain.yml").write_text(plain_config(config), encoding="utf-8")
    return len(list(docs.rglob("*.md")))


def measure_builds(copied: Path) -> dict[str, float]:
    """Seconds of a cold build, a warm one and a plain one (medians).

    "ratio" compares the last two, "cpu" their processor time, which other
    programs on the machine disturb less.
    """
    cold = timed(["scripts.build"], copied)
    number = write_plain(copied)
    warm, plain, marks = [], [], [cpu()]
    for _ in range(ROUNDS):
        warm.append(timed(["scripts.build"], copied))
        marks.append(cpu())
        plain.append(timed(["mkdocs", "build", "-q", "-f", "plain.yml"], copied))
        marks.append(cpu())
    used = [after - before for before, after in pairwise(marks)]
    times = {"cold": cold, "pages": number}
    times |= {"warm": statistics.median(warm), "plain": statistics.median(plain)}
    times["ratio"] = times["warm"] / times["plain"]
    times["cpu"] = sum(used[::2]) / sum(used[1::2])
    return times


def measure_products(copied: Path) -> dict[int, float]:
    """Seconds to draw everything, with one process and with two."""
    words = ["scripts.products", "--force", "--jobs"]
    return {jobs: timed([*words, str(jobs)], copied) for jobs in (1, 2)}


def get(url: str) -> str:
    """What is served at an address, "" while nothing is."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.read().decode("utf-8")
    except (urllib.error.URLError, ConnectionError):
        return ""


def wait_for(url: str, word: str, server: subprocess.Popen) -> float:
    """Seconds until an address serves a word.

    Raises:
        Failed: The server ended, or the word did not come.
    """
    started = time.perf_counter()
    while word not in get(url):
        if server.poll() is not None:
            raise Failed("serve ended; `make serve` shows why")
        if time.perf_counter() - started > PATIENCE_S:
            raise Failed(f"{url} does not show {word} in {PATIENCE_S} s")
        time.sleep(0.05)
    return time.perf_counter() - started


def edit_page(path: Path, word: str) -> None:
    """Put a paragraph with a new word on an answer's page."""
    text = path.read_text(encoding="utf-8")
    mark = "\n## Common wrong answers"
    path.write_text(text.replace(mark, f"\n{word}\n{mark}"), encoding="utf-8")


def edit_snippet(path: Path, section: str, word: str) -> None:
    """Put a comment with a new word into a section that the page shows."""
    text = path.read_text(encoding="utf-8")
    mark = f"# --8<-- [start:{section}]\n"
    path.write_text(text.replace(mark, f"{mark}# {word}\n"), encoding="utf-8")


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return listener.getsockname()[1]


@contextmanager
def serving(copied: Path, port: int) -> Iterator[subprocess.Popen]:
    """`make serve` in the copy, ended at the end."""
    server = subprocess.Popen(
        [sys.executable, "-m", "scripts.serve", "--port", str(port)],
        cwd=copied,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield server
    finally:
        server.terminate()
        server.wait(10)


def example(book: catalog.Book) -> catalog.Answer:
    """The first answer that shows code and something the build made."""
    for answer in book.ordered:
        if {bool(embed.product) for embed in answer.embeds} == {True, False}:
            return answer
    raise Failed("no answer shows code and a figure")


def measure_edits(copied: Path, answer: catalog.Answer) -> dict[str, float]:
    """Seconds from saving a page, and a snippet, to seeing it served."""
    port = free_port()
    url = f"http://{HOST}:{port}/{answer.url}"
    code = next(e for e in answer.embeds if not e.product)
    page, snippet, times = [], [], {}
    with serving(copied, port) as server:
        times["start"] = wait_for(url, "</html>", server)
        for number in range(ROUNDS):
            edit_page(answer.path, f"benchpage{number}")
            page.append(wait_for(url, f"benchpage{number}", server))
            time.sleep(1)
            file = copied / "snippets" / code.path
            edit_snippet(file, code.section, f"benchcode{number}")
            snippet.append(wait_for(url, f"benchcode{number}", server))
            time.sleep(1)
    times["page"] = statistics.median(page)
    times["snippet"] = statistics.median(snippet)
    return times


class Compressed(http.server.SimpleHTTPRequestHandler):
    """Serves files as static hosts do: text in gzip, kept for ten minutes."""

    def do_GET(self) -> None:
        """Send one file, or 404."""
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        if path.suffix in TEXT:
            data = gzip.compress(data)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "max-age=600")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args) -> None:
        """Say nothing."""


@contextmanager
def hosted(site: Path) -> Iterator[str]:
    """A static host of a folder; its address."""
    handler = functools.partial(Compressed, directory=str(site))
    server = http.server.ThreadingHTTPServer((HOST, 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def chromium() -> str:
    """Where the browser is.

    Raises:
        Failed: This machine has none.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    found = [os.environ.get("CHROMIUM", ""), *map(shutil.which, names)]
    if not any(found):
        raise Failed("no Chromium\n    fix: install it, or set CHROMIUM=…")
    return next(path for path in found if path)


def measure_visits(urls: list[str]) -> list[list[tuple[str, str, int]]]:
    """(kind, address, bytes with headers) of all that each visit in turn loads."""
    from playwright.sync_api import sync_playwright

    loaded, sent, visits = {}, {}, []

    def remember(event):
        loaded[event["requestId"]] = event["response"]["url"], event["type"]

    def count(event):
        sent[event["requestId"]] = int(event["encodedDataLength"])

    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium())
        page = browser.new_context().new_page()
        listener = page.context.new_cdp_session(page)
        listener.send("Network.enable")
        listener.on("Network.responseReceived", remember)
        listener.on("Network.loadingFinished", count)
        for url in urls:
            loaded.clear()
            page.goto(url, wait_until="networkidle")
            files = [
                (kind, where, sent.get(i, 0)) for i, (where, kind) in loaded.items()
            ]
            visits.append(sorted(f for f in files if f[1].startswith("http")))
        browser.close()
    return visits


def row(what: str, value: str, aim: str = "", met: bool = True) -> None:
    """Print one measurement beside its aim."""
    verdict = "" if not aim else "ok" if met else "MISSED"
    print(f"  {what:<44}{value:>10}   {aim:<16}{verdict}".rstrip(), flush=True)


def heaviest(copied: Path, number: int) -> list[str]:
    """Addresses of the answers with the longest pages, the longest first."""
    urls = [answer.url for answer in catalog.load(copied).ordered]
    size = {u: (copied / "site" / u / "index.html").stat().st_size for u in urls}
    return sorted(urls, key=size.get, reverse=True)[:number]


def show_visits(url: str, addresses: list[str]) -> None:
    """Measure a first and a second visit and print them by kind of file."""
    visits = measure_visits([url + address for address in addresses])
    for nth, aim, address, files in zip(VISITS, AIMS, addresses, visits, strict=True):
        total = sum(size for _, _, size in files)
        met = total < aim * 1000
        row(f"{address}, {nth} visit", f"{total / 1e3:.0f} kB", f"< {aim} kB", met)
        for kind in sorted({kind for kind, _, _ in files}):
            sizes = [size for one, _, size in files if one == kind]
            row(f"    {len(sizes)} {kind.lower()}", f"{sum(sizes) / 1e3:.0f} kB")
    everything = [where for files in visits for _, where, _ in files]
    others = [where for where in everything if not where.startswith(url)]
    row("  requests", str(len(everything)))
    row("  requests to other hosts", str(len(others)), "0", not others)
    print("".join(f"    {where}\n" for where in others), end="")


def report(copied: Path) -> None:
    """Measure everything and print it, one line each."""
    version = platform.python_version()
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    print(f"{cores} cores, Python {version}, {platform.system()}, load {load:.1f}")
    if load > cores / 2:
        print("  Other programs are running: expect longer times than alone")
    builds = measure_builds(copied)
    ratio = builds["ratio"]
    row("cold build (figures, tables, site)", f"{builds['cold']:.1f} s")
    row(f"plain Material, {builds['pages']} pages", f"{builds['plain']:.1f} s")
    row("warm build", f"{builds['warm']:.1f} s")
    row("warm / plain", f"{ratio:.2f}", "< 1.5", ratio < 1.5)
    row("warm / plain, processor time", f"{builds['cpu']:.2f}")
    answer = example(catalog.load(copied))
    with hosted(copied / "site") as url:
        show_visits(url, heaviest(copied, 2))
    times = measure_edits(copied, answer)
    row("serve: start to first page", f"{times['start']:.1f} s")
    row("  page saved to shown", f"{times['page']:.1f} s", "< 3 s", times["page"] < 3)
    row("  snippet saved to shown", f"{times['snippet']:.1f} s")
    for jobs, seconds in measure_products(copied).items():
        row(f"all figures and tables, {jobs} process(es)", f"{seconds:.1f} s")


def main() -> int:
    """Copy, measure, print; return 1 if a step fails."""
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "book"
        copy(ROOT, copied)
        try:
            report(copied)
        except Failed as failed:
            print(failed, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
