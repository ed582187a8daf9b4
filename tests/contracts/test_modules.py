"""What every snippet module keeps: documented, pure, short enough to show."""

import ast
import subprocess
import sys

import pytest

from scripts import ROOT
from scripts.modules import all_modules

MODULES = all_modules(ROOT)
CODE_LINES = 25
WIDTH = 78


def code_lines(module, low, high):
    """Lines of code from low to high: no docstring, blank line or comment."""
    count = set(range(low + 1, high))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            doc = node.body[0]
            count -= set(range(doc.lineno, doc.end_lineno + 1))
    lines = module.source.splitlines()
    return sum(
        1
        for n in count
        if lines[n - 1].strip() and not lines[n - 1].strip().startswith("#")
    )


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_shown_code_fits_a_whiteboard_and_a_phone(module):
    for name, (low, high) in module.sections.items():
        assert code_lines(module, low, high) <= CODE_LINES, name
    wide = [line for line in module.source.splitlines() if len(line) > WIDTH]
    assert wide == []


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_sections_are_closed_and_hold_whole_functions(module):
    marks = module.source.count("--8<-- [")
    assert marks == 2 * len(module.sections)
    for name, (low, high) in module.sections.items():
        for node in module.functions.values():
            inside = low < node.lineno <= high
            assert inside == (low < node.end_lineno <= high), name


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_every_public_function_has_a_contract(module):
    assert ast.get_docstring(module.tree)
    for name, node in module.functions.items():
        if not name.startswith("_"):
            assert ast.get_docstring(node), name
            if isinstance(node, ast.FunctionDef):
                assert node.returns is not None, name
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                assert [a.arg for a in given if a.annotation is None] == [], name


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_no_global_state_of_plots_or_generators(module):
    for word in ("pyplot", "np.random.seed", "manual_seed(", "rcParams"):
        lines = [
            line
            for line in module.source.splitlines()
            if word in line and ".manual_seed(" not in line.replace("torch.manual", "")
        ]
        assert lines == [], word


def test_importing_prints_nothing_and_writes_nothing(tmp_path):
    names = ["snippets." + name.replace("/", ".") for name in MODULES]
    code = "import importlib\n" + "\n".join(
        f"importlib.import_module({name!r})" for name in names
    )
    run = subprocess.run(
        [sys.executable, "-B", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == ""
    left = [
        p for p in tmp_path.rglob("*") if p.is_file() and "matplotlib" not in str(p)
    ]
    assert left == []
