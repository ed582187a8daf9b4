"""Makes figures, tables and reports from the snippets, when inputs changed.

Run as `python -m scripts.products [--jobs N] [--force] [--show NAME] [NAME…]`,
NAME being "policy/ppo_clipping" or "policy/ppo_clipping.figure_regions".

snippets/<section>/<module>.py  figure_x() -> <module>.figure_x.{light,dark,…}.svg
                                table_x()  -> <module>.table_x.md
                                report_x() -> <module>.report_x.txt
all in .cache/products/<section>/.
"""

import argparse
import hashlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from scripts import CACHE, ROOT, prose, version
from scripts.modules import Module, all_modules, closure
from scripts.problems import nearest

OUT = CACHE / "products"
LIBRARIES = ("matplotlib", "numpy", "torch")
EXPECTED_S, LIMIT_S = 2.0, 10.0
"""Processor seconds: above the first a warning, at the second an error."""
DRAWINGS = ("light", "dark", "narrow-light", "narrow-dark")
"""Of a figure: for each theme, as wide as the text and for a phone."""
RUNNER = ("products.py", "modules.py", "prose.py", "style.py")


class OverBudget(Exception):
    """A product took longer than LIMIT_S."""


@dataclass(frozen=True)
class Product:
    """One function to run and the files that it makes."""

    module: Module
    function: str

    @property
    def name(self) -> str:
        """For example "policy/ppo_clipping.figure_regions"."""
        return f"{self.module.name}.{self.function}"

    def files(self, out: Path) -> list[Path]:
        """Where it goes."""
        kind = self.function.partition("_")[0]
        ends = {
            "figure": tuple(f"{drawing}.svg" for drawing in DRAWINGS),
            "table": ("md",),
            "report": ("txt",),
        }[kind]
        return [out / f"{self.name}.{end}" for end in ends]


def key(module: Module, root: Path) -> str:
    """Hash of all that a module's products depend on."""
    digest = hashlib.sha256(sys.version.encode())
    for name in RUNNER:
        digest.update((Path(__file__).parent / name).read_bytes())
    modules = closure(module, root)
    libraries = set().union(*(m.libraries for m in modules)) | {"matplotlib"}
    for one in modules:
        digest.update(one.name.encode() + one.path.read_bytes())
    for name in sorted(libraries & set(LIBRARIES)):
        digest.update(f"{name} {version(name)}".encode())
    return digest.hexdigest()


def stale(
    root: Path, out: Path, names: list[str], force: bool
) -> list[tuple[Product, str]]:
    """(product, key) of each product to make; removes those of gone code."""
    modules = all_modules(root)
    products = [Product(m, f) for m in modules.values() for f in m.products]
    keys = {m.name: key(m, root) for m in modules.values() if m.products}
    _forget(out, {f for p in products for f in p.files(out)})
    todo = []
    for product in products:
        if names and not {product.name, product.module.name} & set(names):
            continue
        stamp = out / f"{product.name}.key"
        fresh = stamp.exists() and stamp.read_text() == keys[product.module.name]
        if force or not fresh or not all(f.exists() for f in product.files(out)):
            todo.append((product, keys[product.module.name]))
    return todo


def _forget(out: Path, wanted: set[Path]) -> None:
    stems = {str(f).rsplit(".", 1)[0].removesuffix(".light") for f in wanted}
    for path in out.glob("*/*"):
        if path in wanted:
            continue
        if path.suffix != ".key" or str(path.with_suffix("")) not in stems:
            path.unlink()


def _give_up(signum, frame):
    raise OverBudget(f"took more than {LIMIT_S:g} s of processor time")


def make(root: str, out: str, name: str, function: str) -> dict:
    """Run one function and write its files; in a process of its own.

    Returns:
        {"seconds": processor time} or {"error": message}.
    """
    path = Path(root)
    if root not in sys.path:
        sys.path.insert(0, root)
    product = Product(Module(name, path / "snippets" / f"{name}.py"), function)
    files = product.files(Path(out))
    signal.signal(signal.SIGPROF, _give_up)
    try:
        module = importlib.import_module("snippets." + name.replace("/", "."))
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        texts = _texts(getattr(module, function), files, product.name)
    except BaseException as error:
        return {"error": _message(error, path, product)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - started
    for file, text in zip(files, texts, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_name(f"{file.name}.part")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(file)
    return {"seconds": seconds}


def _texts(function, files: list[Path], product: str) -> list[str]:
    if len(files) == 1:
        text = function()
        if not isinstance(text, str):
            raise TypeError(f"returned {type(text).__name__}, not str")
        if files[0].suffix == ".md":
            text = prose.with_minus_signs(text)
        return [text.rstrip("\n") + "\n"]
    from scripts import style

    wide, narrow = (_svg(function, width, product) for width in style.WIDTHS)
    return [wide, style.darkened(wide), narrow, style.darkened(narrow)]


def _svg(function, width: float, salt: str) -> str:
    """The figure in the light theme's colours, as SVG.

    Raises:
        TypeError: The function returned no Figure.
        ValueError: A text is too small to read on a phone.
    """
    import io

    import matplotlib
    from matplotlib.figure import Figure

    from scripts import style

    with matplotlib.rc_context(style.rc(width) | {"svg.hashsalt": salt}):
        figure = function()
        if not isinstance(figure, Figure):
            raise TypeError(f"returned {type(figure).__name__}, not a Figure")
        style.refuse_small_text(figure)
        style.finish_texts(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _message(error: BaseException, root: Path, product: Product) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if str(root / "snippets") in f.filename]
    where = f"snippets/{product.module.name}.py:1"
    line = ""
    if mine:
        shown = Path(mine[-1].filename).relative_to(root)
        where, line = f"{shown}:{mine[-1].lineno}", f"\n    {mine[-1].line}"
    elif isinstance(error, SyntaxError) and error.filename:
        where = f"{os.path.relpath(error.filename, root)}:{error.lineno}"
    return (
        f"{where}: {product.function}() raised {type(error).__name__}: {error}"
        f"{line}\n    rerun: make show NAME={product.name}"
    )


def build(
    root: Path = ROOT,
    out: Path = OUT,
    names: list[str] | None = None,
    force: bool = False,
    jobs: int = 0,
) -> list[str]:
    """Make what is stale, in parallel, with progress; return all errors."""
    todo = stale(root, out, names or [], force)
    if not todo:
        return []
    if any(product.function.startswith("figure") for product, _ in todo):
        from scripts import style

        style.font_file()
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
    ):
        os.environ[name] = "1"  # same bytes and same budget on any machine
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    todo.sort(key=lambda item: item[0].name)
    errors: list[str] = []
    workers = min(jobs or os.cpu_count() or 1, len(todo))
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    with pool:
        running = {
            pool.submit(make, str(root), str(out), p.module.name, p.function): (
                p,
                stamp,
            )
            for p, stamp in todo
        }
        for number, future in enumerate(as_completed(running), 1):
            product, stamp = running[future]
            result = future.result()
            if "error" in result:
                errors.append(result["error"])
                continue
            (out / f"{product.name}.key").write_text(stamp)
            seconds = result["seconds"]
            slow = f"  slow: over {EXPECTED_S:g} s" if seconds > EXPECTED_S else ""
            print(
                f"[{number}/{len(todo)}] {product.name} {seconds:.1f} s{slow}",
                flush=True,
            )
    return sorted(errors)


def digest(out: Path = OUT) -> str:
    """A hash of every product's bytes: equal when a second build is equal."""
    total = hashlib.sha256()
    for path in sorted(out.glob("*/*")):
        if path.suffix != ".key":
            total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


def show(name: str, root: Path = ROOT, out: Path = OUT) -> int:
    """Make one module's products, print its texts, name its figures."""
    modules = all_modules(root)
    module, _, function = name.partition(".")
    if module not in modules:
        print(
            f'no snippet "{module}".{nearest(module, modules)}',
            file=sys.stderr,
        )
        print("    fix: NAME=<section>/<module>", file=sys.stderr)
        return 1
    have = modules[module].products
    if function and function not in have:
        print(
            f'{module}.py has no product "{function}".{nearest(function, have)}\n'
            f"    fix: use one of {', '.join(have)}",
            file=sys.stderr,
        )
        return 1
    errors = build(root, out, [name])
    for one in have:
        if function in ("", one):
            for file in Product(modules[module], one).files(out):
                if not file.exists():
                    continue
                print(f"\n{file.relative_to(root)}")
                if file.suffix != ".svg":
                    print(file.read_text())
    print("\n".join(errors), file=sys.stderr, end="\n" if errors else "")
    return 1 if errors else 0


def main() -> int:
    """The command line; prints a line for each product made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="modules or products; else all")
    parser.add_argument("--jobs", type=int, default=0, help="processes")
    parser.add_argument("--force", action="store_true", help="make fresh ones too")
    parser.add_argument("--show", action="store_true", help="print what is made")
    parser.add_argument("--digest", action="store_true", help="print a hash of all")
    given = parser.parse_args()
    if given.show:
        return max(show(name) for name in given.names)
    errors = build(names=given.names, force=given.force, jobs=given.jobs)
    if errors:
        print("\n".join([*errors, f"{len(errors)} failed"]), file=sys.stderr)
        return 1
    if given.digest:
        print(json.dumps({"digest": digest()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
