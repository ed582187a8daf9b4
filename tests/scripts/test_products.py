"""The runner of figures and tables: cache, errors, budget, same bytes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from scripts import products, style
from scripts.modules import Module, closure
from tests import books

SNIPPET = '''"""A question."""

from matplotlib.figure import Figure

from snippets.policy.helper import VALUE


def figure_line() -> Figure:
    """A line."""
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2], [1, VALUE])
    return figure


def table_numbers() -> str:
    """A table."""
    return f"| a |\\n| - |\\n| {VALUE} |"


def report_text() -> str:
    """A text."""
    return "plain\\n\\n"
'''


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "snippets/policy"
    folder.mkdir(parents=True)
    (tmp_path / "snippets/__init__.py").write_text('"""S."""\n')
    (folder / "__init__.py").write_text('"""P."""\n')
    (folder / "helper.py").write_text('"""H."""\n\nVALUE = 2\n')
    (folder / "thing.py").write_text(SNIPPET)
    return tmp_path


def run(root, **how):
    """Build in a process of its own, as the site does; (lines, errors)."""
    code = (
        "import sys; from pathlib import Path; from scripts import products\n"
        "if __name__ == '__main__':\n"
        f"    root = Path({str(root)!r})\n"
        f"    errors = products.build(root, root / 'out', **{how!r})\n"
        "    print(chr(10).join(errors), file=sys.stderr)\n"
    )
    script = root / "run.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(Path.cwd()), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr.strip()


def made(lines):
    return sorted(line.split()[1] for line in lines)


def test_makes_every_kind_once_and_again_only_when_an_input_changes(root):
    lines, errors = run(root)
    assert errors == ""
    assert made(lines) == [
        "policy/thing.figure_line",
        "policy/thing.report_text",
        "policy/thing.table_numbers",
    ]
    out = root / "out/policy"
    assert sorted(p.name for p in out.iterdir() if p.suffix != ".key") == [
        "thing.figure_line.dark.svg",
        "thing.figure_line.light.svg",
        "thing.figure_line.narrow-dark.svg",
        "thing.figure_line.narrow-light.svg",
        "thing.report_text.txt",
        "thing.table_numbers.md",
    ]
    assert (out / "thing.report_text.txt").read_text() == "plain\n"
    assert run(root) == ([], "")
    books.edit(root / "snippets/policy/helper.py", "VALUE = 2", "VALUE = 3")
    lines, _ = run(root)
    assert len(lines) == 3  # the module it imports changed
    assert "| 3 |" in (out / "thing.table_numbers.md").read_text()


def test_a_figure_is_drawn_wide_and_narrow_light_and_dark(root):
    books.edit(root / "snippets/policy/thing.py", "Figure(figsize=(2, 1))", "Figure()")
    assert run(root)[1] == ""
    read = {
        name: (root / f"out/policy/thing.figure_line.{name}.svg").read_text()
        for name in products.DRAWINGS
    }
    width = {n: float(re.search(r'width="([\d.]+)pt"', t)[1]) for n, t in read.items()}
    assert width["light"] == width["dark"] > 350
    assert width["narrow-light"] == width["narrow-dark"] == 243
    assert "#0b6e6e" in read["light"] and "#5cc8be" not in read["light"]
    assert "#5cc8be" in read["dark"] and "#0b6e6e" not in read["dark"]


def test_a_text_too_small_for_a_phone_is_refused(root):
    small = 'figure.suptitle("tiny", fontsize=6)\n    return figure'
    books.edit(root / "snippets/policy/thing.py", "return figure", small)
    _, errors = run(root)
    assert "text 'tiny' has 6 pt, less than 8.25" in errors


def test_a_second_build_has_the_same_bytes(root):
    run(root, jobs=1)
    first = products.digest(root / "out")
    run(root, force=True, jobs=2)
    assert products.digest(root / "out") == first


def test_a_table_gets_minus_signs_and_a_report_stays(root):
    thing = root / "snippets/policy/thing.py"
    books.edit(thing, "| {VALUE} |", "| -0.5, `-1`, $-1$ |")
    books.edit(thing, "plain", "-0.5")
    run(root)
    out = root / "out/policy"
    made = (out / "thing.table_numbers.md").read_text()
    assert made.splitlines()[-1] == "| −0.5, `-1`, $-1$ |"
    assert (out / "thing.report_text.txt").read_text() == "-0.5\n"


def test_light_and_dark_differ_in_colour_only(root):
    run(root)
    light, dark = (
        (root / f"out/policy/thing.figure_line.{t}.svg").read_text()
        for t in ("light", "dark")
    )
    assert "#0b6e6e" in light and "#5cc8be" in dark
    colour = re.compile(r"#[0-9a-f]{6}|(?<=[\"#])m[0-9a-f]{10}")
    assert colour.sub("#", light) == colour.sub("#", dark)


def test_files_of_code_that_has_gone_are_removed(root):
    run(root)
    books.edit(root / "snippets/policy/thing.py", "def report_text", "def text")
    run(root)
    assert not list((root / "out").glob("*/*.txt"))
    assert not list((root / "out").glob("*/*report_text*"))


def test_an_error_names_the_snippets_own_line_and_the_rerun(root):
    books.edit(
        root / "snippets/policy/thing.py",
        'return f"| a |',
        'import numpy\n    numpy.zeros(2).reshape(3)\n    return f"| a |',
    )
    lines, errors = run(root)
    assert errors == (
        "snippets/policy/thing.py:18: table_numbers() raised ValueError: cannot "
        "reshape array of size 2 into shape (3,)\n"
        "    numpy.zeros(2).reshape(3)\n"
        "    rerun: make show NAME=policy/thing.table_numbers"
    )
    assert made(lines) == [
        "policy/thing.figure_line",
        "policy/thing.report_text",
    ]


def test_a_wrong_return_type_is_named(root):
    books.edit(root / "snippets/policy/thing.py", "return figure\n", "return 1\n")
    _, errors = run(root)
    assert errors == (
        "snippets/policy/thing.py:1: figure_line() raised TypeError: returned "
        "int, not a Figure\n"
        "    rerun: make show NAME=policy/thing.figure_line"
    )


def test_the_budget_is_fatal(root):
    books.edit(
        root / "snippets/policy/thing.py",
        'return "plain',
        'while True:\n        pass\n    return "plain',
    )
    code = (
        "from scripts import products; products.LIMIT_S = 0.2\n"
        f"given = {str(root)!r}, {str(root / 'out')!r}, 'policy/thing', 'report_text'\n"
        "print(products.make(*given)['error'])"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said.startswith("snippets/policy/thing.py:")
    assert "raised OverBudget: took more than 0.2 s of processor time" in said


def test_unknown_names_are_answered_with_near_ones(root, capsys):
    assert products.show("policy/think", root, root / "out") == 1
    assert capsys.readouterr().err == (
        'no snippet "policy/think". Did you mean "policy/thing"?\n'
        "    fix: NAME=<section>/<module>\n"
    )
    assert products.show("policy/thing.figure_lime", root, root / "out") == 1
    assert capsys.readouterr().err == (
        'policy/thing.py has no product "figure_lime". Did you mean '
        '"figure_line"?\n'
        "    fix: use one of figure_line, table_numbers, report_text\n"
    )


def test_torch_counts_only_where_it_is_imported(root):
    thing = Module("policy/thing", root / "snippets/policy/thing.py")
    before = products.key(thing, root)
    books.edit(root / "snippets/policy/helper.py", "VALUE", "import torch\n\nVALUE")
    again = Module("policy/thing", root / "snippets/policy/thing.py")
    assert products.key(again, root) != before
    assert "torch" not in again.libraries
    libraries = set().union(*(m.libraries for m in closure(again, root)))
    assert "torch" in libraries


def test_texts_of_a_figure_get_minus_signs():
    figure = Figure()
    axes = figure.subplots()
    axes.set_title("falls by -0.5", loc="left")
    axes.annotate("GPT-4, $-1$, -3", (0, 0))
    style.finish_texts(figure)
    assert axes.get_title("left") == "falls by −0.5"
    assert axes.texts[0].get_text() == "GPT-4, $-1$, −3"
