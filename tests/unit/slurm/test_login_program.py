"""A program that a login node cannot find or execute is told there; what it cannot know, it says."""

from __future__ import annotations

import shutil

import pytest

from dsrun.launch.program import any_program
from dsrun.slurm.render.site import missing_here
from tests.unit.slurm.stand_ins import spec_of


@pytest.fixture
def told(tmp_path):
    """Level, code and fix of what is missing for `-- LINE` in a folder with `files`: their text and mode by name."""

    def told(line: str, files: dict[str, tuple[str, int]] | None = None, **options: str):
        for name, (text, mode) in (files or {}).items():
            (tmp_path / name).write_bytes(text.encode())
            (tmp_path / name).chmod(mode)
        (tmp_path / "folder").mkdir(exist_ok=True)
        environ = {"PATH": "/usr/bin:/bin"}
        found = missing_here(spec_of(**options), any_program(line.split()), tmp_path, environ, on_cluster=True)
        return [(each.level, each.code.removeprefix("slurm_"), str(each.fix)) for each in found]

    return told


@pytest.mark.parametrize(
    ("line", "text", "mode", "fix"),
    [
        ("./x", "#!/bin/sh\n", 0o644, "chmod +x ./x"),
        ("./x", "echo\n", 0o755, "-- bash ./x"),
        ("./x", "", 0o755, "-- bash ./x"),
        ("./x", "#!/bin/sh\r\n", 0o755, "sed -i"),
        ("./folder", "", 0o755, "path of a program"),
        ("./x y.py", "x", 0o644, "chmod +x ./x"),
    ],
)
def test_file_that_cannot_be_executed_is_an_error(told, line, text, mode, fix):
    ((level, code, named),) = told(line, {"x": (text, mode)})
    assert (level, code) == ("error", "not_executable")
    assert fix in named


def test_interpreter_of_script_that_is_not_here_is_a_warning(told):
    assert [each[:2] for each in told("./x", {"x": ("#!/none/python\n", 0o755)})] == [("warning", "not_executable")]


@pytest.mark.parametrize("text", ["#!/bin/sh\n", "#!/usr/bin/env python3\n", "\x7fELF\x02\x01", "\x00"])
def test_executable_file_is_taken(told, text):
    assert told("./x", {"x": (text, 0o755)}) == []


def test_absolute_path_may_be_another_file_on_the_nodes(told, tmp_path):
    assert [each[0] for each in told(f"{tmp_path}/x", {"x": ("#!/bin/sh\n", 0o644)})] == ["warning"]
    assert [each[:2] for each in told("/none/x")] == [("info", "missing_file")]
    assert [each[:2] for each in told("./none")] == [("error", "missing_file")]


@pytest.mark.parametrize("line", ["bash none.sh", "sh none.sh a", "./env/bin/python -u x.py"])
def test_script_and_interpreter_are_looked_for(told, line):
    assert next(each[:2] for each in told(line, {"x.py": ("", 0o644)})) == ("error", "missing_file")
    assert told("bash -c true") == told("bash x.sh", {"x.sh": ("", 0o644)}) == []


def test_program_that_is_not_on_path_is_a_warning(told):
    """It may be on the compute nodes."""
    assert told("nosuchprog")[0][:2] == ("warning", "program")
    assert told("basj -c true") == [("warning", "program", "did you mean bash?")]
    assert told("tool", {"tool": ("#!/bin/sh\n", 0o755)}) == [("warning", "program", "-- ./tool")]
    assert told("true") == []


@pytest.mark.parametrize(
    "options", [{"module": "cuda"}, {"setup_file": "x.sh"}, {"conda": "./env"}, {"stage": "e.tar"}]
)
def test_what_may_bring_a_program_is_named(told, options):
    files = {"x.sh": ("", 0o644), "e.tar": ("", 0o644)}
    found = [each[:2] for each in told("nosuchprog", files, **options) if each[1] in ("program", "not_executable")]
    assert found == [("info", "program")]


def test_image_brings_its_own_programs(told):
    for options in ({"apptainer": "docker://x"}, {"container_image": "docker://x"}):
        assert [each for each in told("nosuchprog", **options) if each[1] == "program"] == []


def test_programs_of_environment_are_found(told, tmp_path):
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "activate").touch()
    shutil.copy("/bin/true", tmp_path / "env" / "bin" / "mytool")
    assert told("mytool", venv="env") == []
    assert [each[1] for each in told("mytool")] == ["program"]


def test_module_that_python_does_not_have_is_a_warning(told):
    assert [each[:2] for each in told("python -m nosuch.module")] == [("warning", "python_module")]
    assert told("python -m json.tool") == told("python -m mine", {"mine.py": ("", 0o644)}) == []
    assert told("python -m nosuch.module", {"x.sh": ("", 0o644)}, setup_file="x.sh") == []
