"""Sets the project up: .venv with the pinned packages, and node_modules.

Run by any python3 with nothing installed; the file stays readable to Python
3.6, so that an old one can say what is wrong. A stamp is written last: with
the right stamp a run returns at once (so rarer modules are imported where
they are used), without it one repairs what it finds.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11, 5), (3, 14)
FILES = (
    "pyproject.toml",
    "constraints.txt",
    "package.json",
    "package-lock.json",
    ".venv/pyvenv.cfg",
)
GIGABYTES = 2
NO_SPACE = ("No space left", "Errno 28", "ENOSPC", "not enough space")
NO_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeout",
    "ReadTimeout",
    "ProxyError",
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "ETIMEDOUT",
    "ENETUNREACH",
)


class Failed(Exception):
    """The set-up can't go on; the text says why and what to do."""


def dotted(version) -> str:
    """(3, 11, 5) as "3.11.5"."""
    return ".".join(str(part) for part in version)


def fits(version) -> bool:
    """Whether the pinned packages can be had for this Python."""
    return OLDEST <= tuple(version) and tuple(version[:2]) <= NEWEST


def version_of(python: str) -> tuple:
    """The version of an interpreter that has pip, () if it does not run."""
    code = "import pip, sys; print(*sys.version_info[:3])"
    try:
        said = subprocess.check_output([python, "-c", code], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(int(part) for part in said.split())


def wrong_python(found, others) -> str:
    """What to say when this Python is too old or too new."""
    name = next(iter(others), "python3.12")
    first = "" if others else "install one, then "
    return (
        f"Python {dotted(found)} found, {dotted(OLDEST)} or newer needed, "
        f"up to {dotted(NEWEST)}\n"
        f"    fix: {first}make PYTHON={name} serve"
    )


def other_pythons() -> list:
    """The fitting pythons on the search path, newest first."""
    names = [f"python3.{minor}" for minor in range(NEWEST[1], 10, -1)]
    found = [name for name in names if shutil.which(name)]
    return [name for name in found if fits(version_of(name) or (0,))]


def stamp(root: Path) -> str:
    """One hash of all that the set-up depends on, the folder included."""
    digest = hashlib.sha256(str(root).encode())
    for name in FILES:
        digest.update(b"\0" + (root / name).read_bytes())
    return digest.hexdigest()


def is_current(root: Path) -> bool:
    """Whether nothing is to be done; reads a few small files, runs none."""
    made = (".venv/bin/python", "node_modules/.package-lock.json")
    try:
        return all((root / name).exists() for name in made) and (
            stamp(root) == (root / ".venv" / "stamp").read_text()
        )
    except OSError:
        return False


def can_keep(root: Path) -> bool:
    """Whether .venv runs, on a fitting Python, in the folder it was made in.

    A moved one does not: the commands in it name the old folder.
    """
    if not fits(version_of(str(root / ".venv/bin/python")) or (0,)):
        return False
    try:
        head = (root / ".venv/bin/pip").read_text()
    except OSError:
        return False
    return str(root / ".venv" / "bin") in head


def forget_half_installed(root: Path) -> None:
    """Make pip install again what an interrupted run had half copied.

    pip writes INSTALLER when all other files of a package are in place.
    """
    for info in (root / ".venv").glob("lib/*/site-packages/*.dist-info"):
        if not (info / "INSTALLER").exists():
            shutil.rmtree(str(info))


def advice(step: str, said: str, free: float) -> str:
    """Why a step failed, from what it wrote and the free gigabytes."""
    import platform
    import tempfile

    again = "run the same command again: it goes on from here"
    if free < 0.1 or any(word in said for word in NO_SPACE):
        return (
            f"{step}: the disk is full ({free:.1f} GB free, about "
            f"{GIGABYTES} GB needed, 6 GB with torch's CUDA libraries)\n"
            f"    fix: make room here and in {tempfile.gettempdir()}, then " + again
        )
    if any(word in said for word in NO_NETWORK):
        return (
            f"{step}: no answer from the package index\n"
            "    fix: see that this machine is online (behind a proxy or on "
            "a mirror: HTTPS_PROXY,\n"
            "    PIP_INDEX_URL, npm_config_registry), then " + again
        )
    if "No matching distribution" in said or "is not a supported" in said:
        return (
            f"{step}: a pinned package is not to be had for Python "
            f"{platform.python_version()} on {sys.platform} "
            f"{platform.machine()}\n"
            "    fix: remove .venv and take another Python, e.g. "
            "make PYTHON=python3.12 serve"
        )
    return f"{step} failed; its own words are above\n    fix: {again}"


def free_gigabytes(root: Path) -> float:
    """Free space where the project lies or where pip unpacks, the less."""
    import tempfile

    places = (str(root), tempfile.gettempdir())
    return min(shutil.disk_usage(place).free for place in places) / 1e9


def run(step: str, command: list, root: Path) -> None:
    """Run one step with its output shown.

    Raises:
        Failed: It did not end well; says what to do.
    """
    settings = {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_REQUIRE_VIRTUALENV": "1",
        "PIP_USER": "0",
    }
    said = []
    with subprocess.Popen(
        [str(word) for word in command],
        cwd=str(root),
        env={**os.environ, **settings},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stderr:
            sys.stderr.write(line)
            said.append(line)
    if process.returncode:
        raise Failed(advice(step, "".join(said), free_gigabytes(root)))


def requirements(root: Path) -> list:
    """The pinned packages that pyproject.toml names, those for tests too."""
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    return project["project"]["dependencies"] + [
        name for group in project["dependency-groups"].values() for name in group
    ]


def make_venv(root: Path) -> None:
    """Make .venv anew with the Python that runs this.

    Raises:
        Failed: Its Python does not fit, or can't make one.
    """
    import importlib.util
    import platform

    if not fits(sys.version_info[:3]):
        raise Failed(wrong_python(sys.version_info[:3], other_pythons()))
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            minor = dotted(sys.version_info[:2])
            raise Failed(
                f"Python {minor} has no module {module}; Debian and Ubuntu "
                "keep it in a package of its own\n"
                f"    fix: sudo apt install python{minor}-venv"
            )
    print(f"[1/3] .venv, Python {platform.python_version()}", flush=True)
    command = [sys.executable, "-m", "venv", "--clear", ".venv"]
    run("Making .venv", command, root)


def install(root: Path) -> None:
    """Bring .venv and node_modules to what the pinned lists say.

    Raises:
        Failed: A step did not end well, or another folder would change.
    """
    for name in (".venv", "node_modules"):
        if (root / name).is_symlink():
            raise Failed(
                f"{name} is a link to {(root / name).resolve()}, which may "
                f"belong to another checkout\n    fix: rm {name}"
            )
    python = root / ".venv/bin/python"
    if can_keep(root):
        if not fits(sys.version_info[:3]):
            os.execv(str(python), [str(python), str(Path(__file__))])
        print("[1/3] .venv is there", flush=True)
    else:
        make_venv(root)
    (root / ".venv/stamp").unlink(missing_ok=True)
    forget_half_installed(root)

    print("[2/3] Python packages", flush=True)
    index = os.environ.get("TORCH_INDEX", "")
    extra = ["--extra-index-url", index] if index else []
    pip = [python, "-m", "pip", "install", "--no-compile"]
    pip += ["--constraint", "constraints.txt", *extra]
    run("Installing", [*pip, *requirements(root)], root)

    print("[3/3] Formulas, fonts and search: node_modules", flush=True)
    npm = [root / ".venv/bin/npm", "ci", "--ignore-scripts", "--no-fund"]
    run("Installing", [*npm, "--no-audit"], root)
    (root / ".venv/stamp").write_text(stamp(root))


def wait_for_others(root: Path) -> None:
    """Hold the folder until this process ends; one set-up at a time."""
    import fcntl

    folder = os.open(str(root), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another set-up of this folder runs; waiting", flush=True)
        fcntl.flock(folder, fcntl.LOCK_EX)


def main() -> int:
    """Set up what is missing; print the problem and return 1 if it can't."""
    if is_current(ROOT):
        return 0
    try:
        wait_for_others(ROOT)
        started = time.time()
        if not is_current(ROOT):
            install(ROOT)
    except Failed as failed:
        print(f"\n{failed}", file=sys.stderr)
        return 1
    except OSError as error:
        said, free = str(error), free_gigabytes(ROOT)
        print(f"\n{said}\n{advice('Set-up', said, free)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; the next run goes on from here", file=sys.stderr)
        return 130
    print(f"Set up in {time.time() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
