"""The set-up: when it runs, what it keeps, what it says when it can't."""

import ast
import errno
import os
import sys
from pathlib import Path

import pytest

from scripts import ROOT, setup

MADE = (".venv/bin/python", "node_modules/.package-lock.json")


@pytest.fixture
def root(tmp_path) -> Path:
    """A folder that looks completely set up."""
    for name in (*setup.FILES, *MADE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".venv/stamp").write_text(setup.stamp(tmp_path))
    return tmp_path


def test_an_old_python_can_read_it():
    source = (ROOT / "scripts/setup.py").read_text()
    tree = ast.parse(source, feature_version=(3, 6))
    used = {
        name.partition(".")[0]
        for node in tree.body
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert used <= sys.stdlib_module_names
    for node in ast.walk(tree):  # list[str] as an annotation fails in 3.6
        notes = [getattr(node, "returns", None), getattr(node, "annotation", None)]
        assert not any(isinstance(n, ast.Subscript | ast.BinOp) for n in notes)


def test_nothing_to_do_when_all_is_as_stamped(root):
    assert setup.is_current(root)


@pytest.mark.parametrize("name", setup.FILES)
def test_a_changed_file_makes_it_run(root, name):
    (root / name).write_text("other")
    assert not setup.is_current(root)


@pytest.mark.parametrize("name", (*setup.FILES, *MADE, ".venv/stamp"))
def test_a_missing_file_makes_it_run(root, name):
    (root / name).unlink()
    assert not setup.is_current(root)


def test_a_moved_folder_makes_it_run(root):
    moved = root.rename(root.parent / "moved")
    assert not setup.is_current(moved)


def test_an_interpreter_that_has_gone_makes_it_run(root):
    python = root / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert not setup.is_current(root)


def test_current_returns_without_touching_anything(root, monkeypatch):
    monkeypatch.setattr(setup, "ROOT", root)
    monkeypatch.setattr(setup, "install", lambda root: pytest.fail("installs"))
    assert setup.main() == 0


@pytest.mark.parametrize(
    ("version", "fitting"),
    [
        ((3, 9, 18), False),
        ((3, 11, 4), False),
        ((3, 11, 5), True),
        ((3, 14, 9), True),
        ((3, 15, 0), False),
    ],
)
def test_the_versions_are_those_of_pyproject(version, fitting):
    assert setup.fits(version) is fitting
    text = (ROOT / "pyproject.toml").read_text()
    assert 'requires-python = ">=3.11.5,<3.15"' in text


def test_wrong_python_names_one_that_fits():
    said = setup.wrong_python((3, 9, 18), ["python3.13"])
    assert said == (
        "Python 3.9.18 found, 3.11.5 or newer needed, up to 3.14\n"
        "    fix: make PYTHON=python3.13 serve"
    )


def test_wrong_python_without_another():
    said = setup.wrong_python((3, 15, 0), [])
    assert said.endswith("fix: install one, then make PYTHON=python3.12 serve")


def test_wrong_python_stops_before_anything_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "fits", lambda version: False)
    assert setup.main() == 1
    assert "or newer needed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_missing_ensurepip_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(setup.Failed, match=f"apt install python{minor}-venv"):
        setup.make_venv(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [".venv", "node_modules"])
def test_a_link_to_another_checkout_is_left_alone(tmp_path, name):
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    (tmp_path / name).symlink_to(other)
    with pytest.raises(setup.Failed, match=f"{name} is a link.*\n.*rm {name}"):
        setup.install(tmp_path)
    assert (other / "kept").exists()


def test_keeps_a_venv_that_runs_where_it_was_made(root, monkeypatch):
    monkeypatch.setattr(setup, "version_of", lambda python: (3, 12, 1))
    pip = root / ".venv/bin/pip"
    pip.write_text(f"#!{root}/.venv/bin/python3\n")
    assert setup.can_keep(root)
    pip.write_text("#!/elsewhere/.venv/bin/python3\n")
    assert not setup.can_keep(root)
    pip.unlink()
    assert not setup.can_keep(root)


@pytest.mark.parametrize("version", [(), (3, 10, 13), (3, 15, 0)])
def test_does_not_keep_a_broken_or_unfit_venv(root, monkeypatch, version):
    monkeypatch.setattr(setup, "version_of", lambda python: version)
    (root / ".venv/bin/pip").write_text(f"#!{root}/.venv/bin/python3\n")
    assert not setup.can_keep(root)


def test_a_python_that_does_not_run_has_no_version(tmp_path):
    assert setup.version_of(str(tmp_path / "python")) == ()
    assert setup.version_of("false") == ()


def test_half_installed_packages_are_forgotten(tmp_path):
    packages = tmp_path / ".venv/lib/python3.12/site-packages"
    for name in ("whole-1.dist-info", "half-1.dist-info"):
        (packages / name).mkdir(parents=True)
    (packages / "whole-1.dist-info/INSTALLER").touch()
    setup.forget_half_installed(tmp_path)
    assert [p.name for p in packages.iterdir()] == ["whole-1.dist-info"]


@pytest.mark.parametrize(
    ("said", "free", "means"),
    [
        ("OSError: [Errno 28] No space left on device", 9, "the disk is full"),
        ("npm error code ENOSPC", 9, "the disk is full"),
        ("", 0.01, "the disk is full"),
        ("NewConnectionError: Errno -3", 9, "no answer from the package index"),
        ("npm error code EAI_AGAIN", 9, "no answer from the package index"),
        ("No matching distribution found for torch", 9, "is not to be had for"),
        ("something else", 9, "its own words are above"),
    ],
)
def test_advice_tells_the_cause_and_the_way_out(said, free, means):
    text = setup.advice("Installing", said, free)
    assert text.startswith("Installing")
    assert means in text
    assert "\n    fix: " in text


def test_a_failing_step_shows_its_words_and_the_advice(tmp_path, capsys):
    code = "import sys; sys.exit('[Errno 28] No space left on device')"
    with pytest.raises(setup.Failed, match="the disk is full"):
        setup.run("Installing", [sys.executable, "-c", code], tmp_path)
    assert "No space left" in capsys.readouterr().err


def test_pip_may_only_install_into_a_venv(tmp_path):
    code = "import os, sys; sys.exit(os.environ['PIP_REQUIRE_VIRTUALENV'] != '1')"
    setup.run("Installing", [sys.executable, "-c", code], tmp_path)


def test_all_packages_are_asked_for_by_version():
    names = setup.requirements(ROOT)
    assert any(name.startswith("torch==") for name in names)
    assert any(name.startswith("pytest==") for name in names)
    assert all("==" in name for name in names)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (setup.Failed("why\n    fix: how"), 1, "fix: how"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1, "disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "f"), 1, "denied: 'f'"),
        (KeyboardInterrupt(), 130, "the next run goes on from here"),
    ],
)
def test_main_says_why_it_stops(tmp_path, monkeypatch, capsys, error, code, said):
    def install(root):
        raise error

    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "install", install)
    assert setup.main() == code
    assert said in capsys.readouterr().err


def test_a_second_run_waits_for_the_first(root):
    import subprocess

    code = (
        "import sys; from pathlib import Path; from scripts import setup;"
        f"setup.wait_for_others(Path({str(root)!r})); print('go', flush=True);"
        "sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, cwd=ROOT, **pipes) as first:
        assert first.stdout.readline() == "go\n"
        with subprocess.Popen(words, cwd=ROOT, **pipes) as second:
            said = second.stdout.readline()
            assert said == "Another set-up of this folder runs; waiting\n"
            first.communicate()
            assert second.communicate()[0] == "go\n"
