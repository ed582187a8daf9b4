"""`make new`: what it writes passes every check but those that say TODO."""

import subprocess
import sys

import pytest

from scripts import ROOT, checks, new
from scripts.catalog import load
from tests import books


@pytest.fixture
def root(tmp_path):
    return books.make(tmp_path)


def test_only_todos_are_left_and_the_test_passes(root):
    made = new.files(load(root), "third-thing", books.TODAY)
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    checks.fix(load(root))
    said = books.problems(root)
    assert {problem.what for problem in said} == {"TODO"}
    assert {problem.path for problem in said} == {
        "docs/rewards/third-thing.md",
        "snippets/rewards/third_thing.py",
        "tests/snippets/rewards/test_third_thing.py",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--import-mode=importlib",
    ]
    run = subprocess.run(
        [
            *command,
            "-c",
            "/dev/null",
            "--rootdir",
            str(root),
            "tests/snippets",
        ],
        cwd=root,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_an_existing_answer_is_refused(root):
    with pytest.raises(new.Refused) as refused:
        new.files(load(root), "first-thing", books.TODAY)
    assert str(refused.value) == (
        '"first-thing" exists: edit docs/policy/first-thing.md\n'
        "    fix: `make new` lists the questions that have no answer"
    )


def test_a_slug_that_was_not_asked_is_refused_with_a_near_one(root):
    with pytest.raises(new.Refused) as refused:
        new.files(load(root), "thrid-thing", books.TODAY)
    assert str(refused.value) == (
        '"thrid-thing" is not in docs/questions.yml. Did you mean "third-thing"?\n'
        "    fix: use a slug of that file, or add the question to it"
    )


def test_without_a_slug_it_lists_what_has_no_answer(root):
    assert new.unanswered(load(root)) == (
        "third-thing  What is third?\n"
        "1 without an answer; start one: make new SLUG=third-thing"
    )
    books.edit(root / "docs/questions.yml", "third-thing", "first-thing")
    assert new.unanswered(load(root)) == (
        "Every question has its page; a new one goes into docs/questions.yml"
    )


def test_a_plan_with_a_problem_starts_nothing(root, monkeypatch, capsys):
    books.edit(root / "docs/questions.yml", "asked: [B2]", "asked: [B1]")
    monkeypatch.setattr(new, "ROOT", root)
    monkeypatch.setattr(sys, "argv", ["new", "third-thing"])
    assert new.main() == 1
    assert 'asked id "B1" belongs to "second-thing" already' in capsys.readouterr().err
    assert not (root / "docs/rewards").exists()


def test_what_it_writes_is_well_formatted(root):
    snippets = []
    for slug in ("gae", "gui-agent-images", "beyond-grpo", "grpo-memory"):
        book = load(ROOT)
        book.answers.pop(slug, None)
        for path, text in new.files(book, slug, books.TODAY).items():
            if path.suffix == ".py" and "tests" not in path.parts:
                snippets.append(root / path.name)
                snippets[-1].write_text(text, encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff", "check", "--config", "pyproject.toml"]
    run = subprocess.run(
        [*ruff, "--line-length", "78", *map(str, snippets)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert len(snippets) >= 4
