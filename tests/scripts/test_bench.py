"""The bench: what it copies, edits and counts; no measurement."""

import gzip
import http.client

import pytest
import yaml

from scripts import ROOT, bench, catalog


def test_the_copy_leaves_out_what_is_built_and_links_what_is_installed(tmp_path):
    root = tmp_path / "root"
    for name in ("docs", ".git", ".cache", "site", ".venv", "node_modules"):
        (root / name).mkdir(parents=True)
    bench.copy(root, tmp_path / "copy")
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {"docs", ".venv", "node_modules"}
    assert (tmp_path / "copy/.venv").is_symlink()


def test_the_plain_build_has_our_extensions_and_no_hooks():
    ours = (ROOT / "mkdocs.yml").read_text()
    plain = bench.plain_config(ours)
    config = yaml.safe_load(plain.replace("!relative", ""))
    assert "pymdownx.superfences" in config["markdown_extensions"]
    assert config["theme"] == "material"
    assert "hooks" not in config


def test_edits_reach_what_the_page_shows(tmp_path):
    answer = bench.example(catalog.load())
    code = next(e for e in answer.embeds if not e.product)
    page, snippet = tmp_path / "page.md", tmp_path / "snippet.py"
    page.write_text(answer.path.read_text())
    snippet.write_text((ROOT / "snippets" / code.path).read_text())
    bench.edit_page(page, "newword")
    bench.edit_snippet(snippet, code.section, "newword")
    assert "\nnewword\n" in page.read_text()
    start = f"[start:{code.section}]\n# newword\n"
    assert start in snippet.read_text()


def test_text_is_served_compressed_and_the_rest_as_it_is(tmp_path):
    (tmp_path / "index.html").write_text("hello" * 99)
    (tmp_path / "a.woff2").write_bytes(b"font")
    with bench.hosted(tmp_path) as url:
        host = http.client.HTTPConnection(url.split("/")[2])
        host.request("GET", "/")
        answer = host.getresponse()
        assert answer.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(answer.read()) == b"hello" * 99
        host.request("GET", "/a.woff2")
        answer = host.getresponse()
        assert "Content-Encoding" not in answer.headers
        assert answer.read() == b"font"
        host.request("GET", "/missing")
        assert host.getresponse().status == 404
        host.close()


def test_a_failing_step_shows_what_it_printed(tmp_path):
    with pytest.raises(bench.Failed, match="no_such_module"):
        bench.timed(["no_such_module"], tmp_path)


def test_without_a_browser_it_says_so(monkeypatch):
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(bench.shutil, "which", lambda name: None)
    with pytest.raises(bench.Failed, match="no Chromium\n    fix: install it"):
        bench.chromium()


def test_a_row_says_whether_the_aim_is_met(capsys):
    bench.row("warm / plain", "1.61", "< 1.5", met=False)
    bench.row("page", "200 kB", "< 300 kB", met=True)
    bench.row("cores", "2")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["MISSED", "ok", "2"]
