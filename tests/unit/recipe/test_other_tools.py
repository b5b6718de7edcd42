"""Flags of other tools are answered with ours."""

from __future__ import annotations

import json
import re

import pytest

from dsrun.cli.options import declared_in
from dsrun.errors import UsageError
from dsrun.recipe.compat.removed import answer, other_tools, vocabulary
from dsrun.recipe.resolve import resolve

launch, export = declared_in("launch/command.toml"), declared_in("export.toml")


@pytest.mark.parametrize("name", other_tools())
def test_advice_names_flags_that_exist_for_one_that_does_not(name):
    assert name not in vocabulary()
    _, advice = other_tools()[name]
    of_commands = {option for command in (launch, export) for each in command.params for option in each.opts}
    for flag in re.findall(r"--([a-z][a-z0-9_-]+)", advice):
        assert flag.replace("-", "_") in vocabulary() or f"--{flag}" in of_commands or "render-slurm" in advice, flag


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--cutoff_len", "2048"], "--cutoff_len is not a flag of dsrun, but of LLaMA-Factory (write --max-length N)"),
        (["--cutoff-len=2048"], "--cutoff-len is not a flag of dsrun, but of LLaMA-Factory (write --max-length N)"),
        (["--num_gpus", "8"], "--num_gpus is not a flag of dsrun, but of the DeepSpeed launcher (write --nproc N)"),
        (
            ["--sequence_length", "8"],
            "--sequence_length is not a flag of dsrun, but of nanotron (write --max-length N)",
        ),
        (["--patience", "3"], "--patience is not a flag of dsrun, but of other trainers (write --early-stopping N)"),
        (["--freeze-layers", "3"], "--freeze-layers is not a flag of dsrun, but of older example scripts (write --fre"),
    ],
)
def test_flag_of_another_tool_on_the_command_line(argv, message, tmp_path):
    with pytest.raises(UsageError, match=re.escape(message)):
        resolve(["--model", "m", *argv], tmp_path)


def test_switch_of_another_tool_before_a_known_flag(tmp_path):
    with pytest.raises(UsageError, match="--padding_free is not a flag of dsrun, but of TRL"):
        resolve(["--padding_free", "--model", "m"], tmp_path)


def test_key_of_another_tool_in_files(tmp_path):
    (tmp_path / "run.yaml").write_text("train:\n  model: m\n  sample_packing: true\n")
    with pytest.raises(UsageError, match=r"run\.yaml:3: train\.sample_packing is not a flag of dsrun, but of axolotl"):
        resolve(["--config", str(tmp_path / "run.yaml")], tmp_path)
    (tmp_path / "args.json").write_text(json.dumps({"model": "m", "lora_rank": 8}))
    with pytest.raises(UsageError, match=r"args\.json: lora_rank is not a flag of dsrun, but of LLaMA-Factory"):
        resolve([str(tmp_path / "args.json")], tmp_path)


ROWS_CUT = (
    *("sequence_parallel_degree", "sequence_parallel_size", "sequence_parallel_mode", "context_parallel_size"),
    *("context_parallel_degree", "context_parallel_dim", "cp_size", "cp", "sp_size", "sp", "ulysses_size"),
    *("ulysses_degree", "ulysses_sequence_parallel_size", "ring_attn_size", "ring_attn_func", "ring_attention"),
    *("heads_k_stride", "hyper_parallel_cp_size", "parallelism_config_cp_size", "s2_attention", "shift_attn"),
)


@pytest.mark.parametrize("name", ROWS_CUT)
def test_rows_cut_over_gpus_are_answered_with_sequence_parallel(name, tmp_path):
    with pytest.raises(UsageError, match=r"not a flag of dsrun, .*--long-context N --sequence-parallel K"):
        resolve(["--model", "m", f"--{name}", "2"], tmp_path)


@pytest.mark.parametrize(
    "name", ["tp", "tp_size", "tensor_parallel_size", "tensor_model_parallel_size", "pp", "ep_size"]
)
def test_layers_cut_over_gpus_are_answered_with_zero_3(name, tmp_path):
    with pytest.raises(UsageError, match=r"not a flag of dsrun, .*--zero 3"):
        resolve(["--model", "m", f"--{name}", "2"], tmp_path)


def test_typing_error_in_a_flag_is_not_taken_for_a_pattern():
    slips = {
        f"{name[:place]}{name[place + 1 :]}" for name in vocabulary() if len(name) > 7 for place in range(len(name))
    }
    taken = {slip for slip in slips - vocabulary().keys() - other_tools().keys() if answer("x", slip)}
    assert taken == set()
