"""The project's own files: pins, rights, documents that agree with them."""

import json
import os
import re
import subprocess
import tomllib
from typing import get_args

import pytest
import yaml

from scripts import ROOT
from scripts.catalog import Meta
from scripts.checks import PARTS
from scripts.pages import PATHS
from scripts.plan import Section

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = [
    ROOT / ".github/ISSUE_TEMPLATE" / f"{n}.yml" for n in ("correction", "question")
]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
PIN = re.compile(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*")


def requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"].values()
    return project["project"]["dependencies"] + [n for g in groups for n in g]


def constraints() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_python_package_is_pinned():
    for line in requirements() + constraints():
        assert PIN.fullmatch(line), line  # "+cpu" would refuse other builds


def test_direct_pins_are_among_all_pins():
    pins = dict(line.split("==") for line in constraints())
    pins = {canonical(name): version for name, version in pins.items()}
    for line in requirements():
        name, version = line.split("==")
        assert pins[canonical(name)] == version


def test_constraints_are_sorted_and_named_once():
    names = [line.split("==")[0].lower() for line in constraints()]
    assert names == sorted(names)
    assert len({canonical(name) for name in names}) == len(names)


def test_every_npm_package_is_pinned_and_locked():
    package = json.loads((ROOT / "package.json").read_text())
    lock = json.loads((ROOT / "package-lock.json").read_text())
    assert package["private"] is True
    kinds = ("dependencies", "devDependencies")
    asked = {k: v for kind in kinds for k, v in package.get(kind, {}).items()}
    for name, version in asked.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), name
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
    for name, entry in lock["packages"].items():
        assert not name or entry["integrity"].startswith("sha512-"), name


def test_the_lock_file_names_no_registry():
    lock = json.loads((ROOT / "package-lock.json").read_text())
    for name, entry in lock["packages"].items():
        entry.pop("funding", None)
        assert "://" not in json.dumps(entry), name
    assert "omit-lockfile-registry-resolved=true" in (ROOT / ".npmrc").read_text()
    assert "://" not in (ROOT / ".npmrc").read_text()


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.name)
def workflow(request):
    return request.param.read_text(), yaml.safe_load(request.param.read_text())


def test_workflows_may_only_read(workflow):
    _, data = workflow
    assert data["permissions"] == {"contents": "read"}


def test_only_the_deploying_job_may_write_and_only_to_pages(workflow):
    _, data = workflow
    more = {
        k: job["permissions"] for k, job in data["jobs"].items() if "permissions" in job
    }
    assert more in ({}, {"deploy": {"pages": "write", "id-token": "write"}})
    for name in more:
        for step in data["jobs"][name]["steps"]:
            assert step["uses"].startswith("actions/deploy-pages@")


def test_every_action_is_pinned_by_commit_and_says_its_version(workflow):
    text, _ = workflow
    for used in re.findall(r"uses: *(.+)", text):
        if not used.startswith("./"):
            pinned = r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+"
            assert re.fullmatch(pinned, used), used


def test_an_action_has_one_commit_everywhere():
    texts = "".join(path.read_text() for path in WORKFLOWS)
    used = set(re.findall(r"uses: *([\w/-]+)@([0-9a-f]{40})", texts))
    assert len({name for name, _ in used}) == len(used)


def test_workflows_run_no_foreign_code_with_rights(workflow):
    text, data = workflow
    assert "pull_request_target" not in text
    assert "secrets." not in text
    assert not re.search(r"run:.*\$\{\{", text)  # no text of others in a shell
    steps = [s for job in data["jobs"].values() for s in job.get("steps", [])]
    for step in steps:
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_jobs_that_run_steps_have_a_limit(workflow):
    _, data = workflow
    for job in data["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 60


def test_a_pull_request_runs_what_the_readme_says():
    data = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())
    assert "pull_request" in data[True]  # YAML reads `on` as true
    assert {"run": ".ci/run"} in data["jobs"]["check"]["steps"]
    run = ROOT / ".ci/run"
    assert os.access(run, os.X_OK)
    text = run.read_text()
    assert "set -euo pipefail" in text
    assert text.rstrip().endswith("make test")


def test_only_main_is_published_after_its_checks():
    data = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())
    assert data[True] == {"push": {"branches": ["main"]}}
    assert data["jobs"]["build"]["needs"] == "check"
    assert data["jobs"]["deploy"]["needs"] == "build"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_issue_forms_are_whole(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    names = [part["id"] for part in form["body"]]
    assert len(set(names)) == len(names)
    for part in form["body"]:
        assert part["type"] in ("input", "textarea", "checkboxes")
        assert part["attributes"]["label"]


def targets() -> dict[str, list[str]]:
    """What each target needs, `test` without TESTS."""
    text = (ROOT / "Makefile").read_text()
    text = text.replace("$(if $(TESTS),setup,check)", "check")
    found = re.findall(r"^([a-z]+):([^#\n]*)## \S", text, re.M)
    return {name: needs.split() for name, needs in found}


def test_every_target_is_documented_and_declared():
    made = targets()
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert set(phony[1].split()) == set(made)
    readme = (ROOT / "README.md").read_text()
    listed = set(re.findall(r"^\| `make ([a-z]+)` \|", readme, re.M))
    assert listed == set(made) - {"help"}


def test_every_target_that_runs_something_sets_up_first():
    made = targets()
    for name in set(made) - {"help", "setup", "clean"}:
        (need,) = made[name]
        assert need == "setup" or "setup" in made[need]


@pytest.mark.parametrize(
    "given, checked", [([], True), (["TESTS=tests/contracts"], False)]
)
def test_a_part_of_the_tests_runs_whatever_the_form_of_other_files(given, checked):
    command = ["make", "--dry-run", "test", *given]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("ruff format" in said.stdout) == checked
    assert "scripts/setup.py" in said.stdout
    (run,) = [line for line in said.stdout.splitlines() if "-m pytest" in line]
    assert run.endswith(given[0][6:] if given else "worksteal ")


def test_the_examples_of_commands_work():
    """SLUG has no example: `make new` lists what it can be."""
    texts = [path.read_text() for path in (*DOCUMENTS, ROOT / "Makefile")]
    examples = re.findall(r"(SLUG|NAME|TESTS)=([\w./-]+)", "\n".join(texts))
    assert {name for name, _ in examples} == {"NAME", "TESTS"}
    for name, value in examples:
        folder = "snippets" if name == "NAME" else ""
        path = ROOT / folder / value
        assert path.exists() or path.with_suffix(".py").exists(), value


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_only_what_exists(path):
    text = path.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        if not target.startswith(("../", "policy/")):  # the form of a page
            assert (ROOT / target).exists(), target
    commands = set(re.findall(r"`make ([a-z]+)", text))
    commands |= set(re.findall(r"^make ([a-z]+)", text, re.M))
    assert commands <= set(targets())


def test_the_tree_in_the_readme_is_the_tree():
    text = (ROOT / "README.md").read_text()
    for name in re.findall(r"^[├└]── (\S+)", text, re.M):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"^│   [├└]── (\S+)", text, re.M):
        assert (ROOT / "tests" / name).exists(), name


def test_contributing_shows_the_form_that_is_checked():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for part in PARTS:
        assert f"## {part}" in text
    front = yaml.safe_load(re.search(r"```yaml\n---\n(.*?)---\n", text, re.S)[1])
    assert list(front) == list(Meta.model_fields)
    Meta.model_validate(front)


def test_every_path_of_the_plan_is_a_reading_path():
    (known, _) = get_args(Section.model_fields["path"].annotation)
    assert {"evening", *get_args(known)} == set(PATHS)


def test_the_project_names_no_machine():
    for path in (*DOCUMENTS, *WORKFLOWS, ROOT / "Makefile", ROOT / ".ci/run"):
        text = path.read_text()
        assert not re.search(r"/(work|tmp|root|home)/", text), path.name
