"""A run goes on under another version of Python, and is exported there: checkpoints move in both directions."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.conftest import SHORT, dsrun, records
from tests.interpreters import with_packages

pytestmark = pytest.mark.train

OTHERS = with_packages()


def export(python, checkpoint, to, env):
    argv = [python, "-m", "dsrun", "export", checkpoint, "--to", to]
    subprocess.run(argv, env={**os.environ, **env}, check=True, stdout=subprocess.DEVNULL)
    return load_file(to / "model.safetensors")


@pytest.mark.skipif(not OTHERS, reason="no other Python that could import torch")
@pytest.mark.parametrize("version", OTHERS)
def test_checkpoints_move_between_python_versions(tiny, pairs, tmp_path, version):
    """Saved here, resumed there, and resumed here again; each exports what the other saved."""
    other, env = OTHERS[version]
    shape = ["--model", tiny["t5"], "--train-file", pairs["train"], *SHORT, "--zero", "3", "--nproc", "1"]
    shape += ["--save-steps", "1", "--save-total-limit", "9"]
    whole, there, back = (tmp_path / name for name in ("whole", "there", "back"))

    dsrun(*shape, "--max-steps", "3", output=whole).ok()
    start = ["--max-steps", "3", "--resume", str(whole / "checkpoint-1")]
    dsrun(*shape, *start, output=there, python=str(other), env=env).ok()
    dsrun(*shape, "--max-steps", "3", "--resume", str(there / "checkpoint-2"), output=back).ok()
    losses = records(whole, "loss")
    assert records(there, "loss") == pytest.approx(losses[1:])
    assert records(back, "loss") == pytest.approx(losses[2:])

    ours = export(sys.executable, there / "checkpoint-3", tmp_path / "ours", {})
    theirs = export(other, whole / "checkpoint-3", tmp_path / "theirs", env)
    assert all(torch.allclose(ours[name], value) for name, value in theirs.items())
