"""The workflow of a public forge runs what the Makefile has, on the Pythons that the package names, with no rights."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_workflow_commands_are_make_targets():
    commands = [step["run"] for step in STEPS if "run" in step]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(commands) == {"make lint", "make test"}
    assert {command.removeprefix("make ") for command in commands} <= targets


def test_workflow_pythons_equal_classifiers():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = re.findall(r"Python :: (3\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    assert WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"] == versions
    lint = next(step["with"] for step in WORKFLOW["jobs"]["lint"]["steps"] if "with" in step)
    assert lint["python-version"] == versions[0]


def test_workflow_only_reads_and_takes_actions_of_a_release():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in WORKFLOW["jobs"].values())
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used
    assert [each for each in used if not re.fullmatch(r"actions/[\w-]+@v\d+", each)] == []


def test_workflow_cache_follows_files_that_exist():
    files = {file for step in STEPS for file in step.get("with", {}).get("cache-dependency-path", "").split()}
    assert "constraints.txt" in files
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_workflow_runs_on_pull_requests_and_main():
    # YAML 1.1 reads the key `on` as true.
    assert WORKFLOW[True] == {"pull_request": None, "push": {"branches": ["main"]}}
