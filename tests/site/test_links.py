"""Every link, image, script and anchor of the built site leads somewhere."""

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Collects the anchors and the addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.ids.append(value)
            elif name in ("href", "src", "action") and value:
                self.targets.append(value)


def test_every_address_exists(site):
    @cache
    def read(path: Path) -> Page:
        return Page(path.read_text(encoding="utf-8"))

    broken = []
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":
            continue  # served at any depth, with addresses from the root
        for target in read(path).targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = path
            if parts.path:
                file = (path.parent / unquote(parts.path)).resolve()
            if file.is_dir():
                file /= "index.html"
            shown = f"{path.relative_to(site)} -> {target}"
            if not file.exists():
                broken.append(shown)
            elif parts.fragment and file.suffix == ".html":
                if unquote(parts.fragment) not in read(file).ids:
                    broken.append(shown)
    assert broken == []


def test_no_id_stands_twice_on_a_page(site):
    twice = {}
    for path in site.rglob("*.html"):
        ids = Page(path.read_text(encoding="utf-8")).ids
        if repeated := sorted({i for i in ids if ids.count(i) > 1}):
            twice[str(path.relative_to(site))] = repeated
    assert twice == {}
