"""The Dockerfile as text: hadolint's rules, and what its build reads. `make test-image` carries its steps out."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.image.dockerfile import context_files, expand, read_stages

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
# Versions of Debian's packages follow from its release, and pip keeps nothing by a variable (DL3042 knows flags only).
LEFT_OUT = ("DL3008", "DL3042")


def test_dockerfile_passes_hadolint():
    rules = [f"--ignore={rule}" for rule in LEFT_OUT]
    argv = [Path(sys.executable).with_name("hadolint"), *rules, ROOT / "Dockerfile"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_dockerfile_needs_no_buildkit():
    """kaniko, buildah and older podman build it, too: no mounts, here-documents or links of COPY."""
    assert not re.search(r"--mount|--link|--chmod|<<|^# *syntax", TEXT, re.MULTILINE)


def test_image_build_reads_what_the_wheel_needs():
    """.dockerignore lets through the files that hatchling includes, and nothing besides them but the pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    targets = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {*targets["packages"], *targets["force-include"]}
    files = context_files(ROOT, (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines())
    assert {path.parts[0] for path in files} == {*folders, "pyproject.toml", "README.md", "LICENSE", "constraints.txt"}
    assert not [path for path in files if path.suffix == ".pyc"]
    code = {path.relative_to(ROOT) for path in (ROOT / "dsrun").rglob("*.py")}
    assert code <= set(files)


def test_dockerfile_default_arch_is_one_that_dsrun_knows():
    """Generations of this torch's CUDA; both stages that declare it have the same default."""
    stages = read_stages(TEXT, {})
    defaults = {value for stage in stages for word, value in stage.steps if word == "ARG" and value.startswith("ARCH=")}
    (default,) = defaults
    known = tomllib.loads((ROOT / "build/cuda.toml").read_text(encoding="utf-8"))["generations"]
    assert set(default.removeprefix("ARCH=").split(",")) <= set(known)


def test_dockerfile_reader_follows_stages_and_arguments():
    text = 'ARG A=x\nFROM $A-slim AS one\nARG B\nRUN a \\\n && b\n# note\nFROM one\nCMD ["c"]\n'
    one, two = read_stages(text, {"A": "y"})
    assert (one.name, one.base, one.steps) == ("one", "y-slim", [("ARG", "B"), ("RUN", "a  && b")])
    assert (two.base, two.steps) == ("one", [("CMD", '["c"]')])


@pytest.mark.parametrize(("text", "expanded"), [("$A/b", "1/b"), ("${A}b", "1b"), ('"a b"', "a b"), ("$B", "")])
def test_dockerfile_reader_expands_variables(text, expanded):
    assert expand(text, {"A": "1"}) == expanded
