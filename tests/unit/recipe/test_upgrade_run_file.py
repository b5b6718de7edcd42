"""Old training flags in a run.yaml."""

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.compat.upgrade import upgrade_run_file
from dsrun.recipe.resolve import resolve

CASES = [
    ("  evaluation_strategy: epoch\n", "  eval_strategy: epoch\n"),
    ("  evaluation-strategy: 'epoch' # each\n", "  eval_strategy: 'epoch' # each\n"),
    ("  no_cuda: yes\n", "  use_cpu: true\n"),
    ("  no_cuda: false\n", ""),
    ("  include_inputs_for_metrics: true\n", "  include_for_metrics: [inputs]\n"),
    ("  save_safetensors: true\n\n  # next\n  seed: 1\n", "\n  # next\n  seed: 1\n"),
    ("  warmup_ratio: 0.1\n  warmup_steps: 5\n", "  warmup_steps: 5\n"),
    ("  overwrite_output_dir: true\n", "  resume: never\n"),
    ("  group_by_length: true\n  seed: 1\n", "  train_sampling_strategy: group_by_length\n  seed: 1\n"),
    ("  learning_rate: 1e-4\n", "  learning_rate: 1e-4\n"),
]


def upgraded(folder, lines, ends="\n"):
    path = folder / "run.yaml"
    path.write_text(f"# mine\ntrain:\n  model: m\n{lines}", newline=ends)
    return upgrade_run_file(path, "run.yaml")


@pytest.mark.parametrize(("old", "new"), CASES, ids=lambda text: text.split(":")[0].strip())
def test_upgrade_run_file_replaces_removed_flags(tmp_path, old, new):
    text, changes, left = upgraded(tmp_path, old)
    assert text == f"# mine\ntrain:\n  model: m\n{new}"
    assert bool(changes) is (old != new)
    assert left == []


@pytest.mark.parametrize(("old", "new"), CASES, ids=lambda text: text.split(":")[0].strip())
def test_upgraded_run_file_is_equivalent(tmp_path, old, new):
    """The new file means the same and needs no upgrade."""
    before = upgraded(tmp_path, old)
    theirs = resolve(["--config", "run.yaml"], tmp_path)
    again = upgraded(tmp_path, new)
    ours = resolve(["--config", "run.yaml"], tmp_path)
    assert (ours.spec, ours.hf) == (theirs.spec, theirs.hf)
    assert again[:2] == (before[0], [])


@pytest.mark.parametrize(("old", "new"), CASES, ids=lambda text: text.split(":")[0].strip())
def test_upgrade_run_file_keeps_line_endings(tmp_path, old, new):
    text, _, _ = upgraded(tmp_path, old, ends="\r\n")
    assert text == f"# mine\ntrain:\n  model: m\n{new}".replace("\n", "\r\n")


def test_upgrade_run_file_reports_flag_without_equivalent(tmp_path):
    """A flag without an equivalent is left as it is and reported."""
    text, changes, left = upgraded(tmp_path, "  tpu_num_cores: 8\n")
    assert "tpu_num_cores: 8" in text
    assert changes == []
    assert left[0].startswith("run.yaml:4: train.tpu_num_cores is no longer a flag")


def test_upgrade_run_file_rejects_braces(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("train: {model: m, no_cuda: true}\n")
    with pytest.raises(UsageError, match="is in braces"):
        upgrade_run_file(path, "run.yaml")


def test_upgrade_run_file_without_train_section(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("zero:\n  stage: 2\n")
    assert upgrade_run_file(path, "run.yaml")[0] == "zero:\n  stage: 2\n"
