"""The first words of commands: before anything heavy is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In the place of torch: says that it is imported, where the output of ranks and their agent is shown.
TORCH = "import os, sys\nos.write(2, b'torch is imported\\n')\nsys.exit(3)\n"


@pytest.fixture
def torch(here, environ):
    package = here / "path" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TORCH)
    environ["PYTHONPATH"] = str(package.parent)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    "args",
    [
        "train --model demo-t5 --use-cpu --max-restarts 0 --no-warm --debug --output run",
        "launch --max-restarts 0 --output run -- python -c pass",
    ],
)
def test_first_words_come_before_torch(here, environ, args):
    argv = [sys.executable, "-m", "dsrun", *args.split()]
    done = subprocess.run(argv, cwd=here, env=environ, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert lines[0].startswith("starting 1 rank on the CPUs of ")
    assert lines[0].endswith(", output in run")
    assert "torch is imported" in lines[1:]


@pytest.mark.parametrize("name", ["run", None])
def test_first_words_are_not_the_product(dsrun, name):
    """A dry run and a refusal have none."""
    output = ["--output", name] if name else []
    assert "starting" not in dsrun("train", "--model", "demo-t5", "--dry-run", *output).stderr
    assert "starting" not in dsrun("train", "--model", "./nope", *output).stderr
