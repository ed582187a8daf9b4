"""`make site`: strict, repeatable, and the last good site stays on an error."""

import hashlib
import shutil
import subprocess
import sys

import pytest

from scripts import ROOT
from tests import books

PAGE = "docs/policy/first-thing.md"
LINKING = "docs/policy/second-thing.md"
SNIPPET = "snippets/policy/first_thing.py"
QUESTIONS = "docs/questions.yml"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = books.make(tmp_path_factory.mktemp("book"))
    for name in ("scripts", "theme"):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, root / name, ignore=skip)
    shutil.copy(ROOT / "mkdocs.yml", root)
    (root / "node_modules").symlink_to(ROOT / "node_modules")
    (root / "docs/index.md").write_text("---\ntemplate: home.html\n---\n\n# Home\n")
    run = build(root)
    assert run.returncode == 0, run.stdout + run.stderr
    return root


@pytest.fixture
def text(root):
    """Gives a file back as it was."""
    edited = (PAGE, LINKING, SNIPPET, QUESTIONS)
    kept = {name: (root / name).read_text() for name in edited}
    yield
    for name, old in kept.items():
        (root / name).write_text(old)


def build(root):
    return subprocess.run(
        [sys.executable, "-m", "scripts.build"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def digest(root):
    total = hashlib.sha256()
    for path in sorted((root / "site").rglob("*")):
        if path.is_file():
            total.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return total.hexdigest()


def test_a_second_build_is_byte_identical(root):
    first = digest(root)
    run = build(root)
    assert run.returncode == 0, run.stderr
    assert digest(root) == first
    assert not (root / ".cache/site").exists()


@pytest.mark.parametrize(
    "old, new, seen",
    [("2 * x", "2 * x  # zebra", "zebra"), ("(1.0, 2.0)", "(1.0, 77.0)", ">154<")],
    ids=["code", "table"],
)
def test_a_page_follows_the_snippet_that_it_embeds(root, text, old, new, seen):
    page = root / "site/policy/first-thing/index.html"
    assert seen not in page.read_text()
    books.edit(root / SNIPPET, old, new)
    run = build(root)
    assert run.returncode == 0, run.stderr
    assert seen in page.read_text()


def test_a_page_follows_the_pages_that_link_to_it(root, text):
    page = root / "site/policy/first-thing/index.html"
    books.edit(root / LINKING, "See [the first]", "Gnu [the first]")
    run = build(root)
    assert run.returncode == 0, run.stderr
    assert "Gnu the first" in page.read_text()


def test_a_question_is_added_by_one_entry(root, text):
    new = '  - {slug: new, asked: [B3], en: "New here?", zh: "新的？", vi: "Mới?"}\n'
    (root / QUESTIONS).write_text((root / QUESTIONS).read_text() + new)
    run = build(root)
    assert run.returncode == 0, run.stderr
    for page in ("lists/asked", "questions", "rewards"):
        assert "New here?" in (root / "site" / page / "index.html").read_text(), page


BREAKS = [
    (
        "a bad formula",
        PAGE,
        "## Where",
        "A formula $\\frac{1$.\n\n## Where",
        f"{PAGE}:42: bad TeX: ",
    ),
    (
        "a plan that cannot be read",
        QUESTIONS,
        'zh: "第一？", ',
        "",
        f'{QUESTIONS}:2: question "first-thing" has no "zh"',
    ),
    (
        "a snippet that fails",
        SNIPPET,
        "rows = [",
        "raise RuntimeError('no')\n    rows = [",
        f"{SNIPPET}:30: table_values() raised RuntimeError: no",
    ),
    (
        "a warning of MkDocs",
        PAGE,
        "## Where",
        "See [this](#nowhere).\n\n## Where",
        "contains a link '#nowhere', but there is no such anchor on this page",
    ),
    (
        "a warning of mkdocstrings",
        SNIPPET,
        "        x: Text",
        "        y: Text",
        "Parameter 'y' does not appear in the function signature",
    ),
    (
        "a link to a file that is not there",
        PAGE,
        "## Where",
        "See [this](nowhere.txt).\n\n## Where",
        "contains a link 'nowhere.txt', but the target",
    ),
]


@pytest.mark.parametrize(
    "file, old, new, message", [pytest.param(*b[1:], id=b[0]) for b in BREAKS]
)
def test_an_error_leaves_the_last_good_site(root, text, file, old, new, message):
    good = digest(root)
    books.edit(root / file, old, new)
    for _ in range(2):  # what the first run kept must not hide it
        run = build(root)
        assert run.returncode == 1
        assert message in run.stderr and "site/ is unchanged" in run.stderr
        assert "Traceback" not in run.stderr
        assert digest(root) == good
