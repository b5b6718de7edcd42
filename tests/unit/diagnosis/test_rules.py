"""What the data of the diagnosis rules must satisfy."""

import re
import tomllib
from importlib.resources import files
from typing import get_args

from dsrun.diagnosis.rules import UNKNOWN, NextStep, SignWeight, cause_named, causes
from dsrun.findings.finding import Level

# The names that other programs rely on; more may be added, none may be renamed.
NAMES = """
none cuda_oom host_oom_killed cpu_shm_bus_error dataloader_worker_killed nccl_timeout nccl_network address_in_use
rendezvous_timeout libuv_missing cuda_toolkit_mismatch no_kernel_image cuda_home_missing jit_build_failed libaio_missing
illegal_instruction ds_config_mismatch ds_config_invalid bf16_unsupported loss_scale_overflow nan_loss
ddp_unused_parameters checkpoint_world_size_mismatch checkpoint_corrupt checkpoint_shape_mismatch zero3_empty_weights
disk_full disk_error wandb_login hf_gated_or_offline dataset_not_found dataset_format tokenizer_pad_token_missing
device_side_assert slurm_time_limit slurm_preempted slurm_cancelled slurm_node_fail slurm_invalid_request
python_abi_undefined_symbol unknown_training_argument device_ordinal ecc_or_xid_error permission_denied rank_killed
rank_hung agent_killed node_lost deterministic_crash interrupted unknown
"""


def test_cause_codes_are_unique() -> None:
    entries = tomllib.loads(files("dsrun.diagnosis").joinpath("rules.toml").read_text())["cause"]
    assert len(entries) == len(causes())


def test_cause_rule_values_are_known() -> None:
    for cause in causes().values():
        assert cause.level in get_args(Level), cause.code
        assert cause.then in get_args(NextStep), cause.code
        for sign in cause.signs:
            assert sign.weight in get_args(SignWeight), cause.code
            # A shorter word would stand in every line of a log.
            assert all(len(word) >= 3 for word in sign.has), cause.code


def test_cause_title_meaning_and_fix_are_one_line_each() -> None:
    """Title, meaning and fix of every cause are one line each."""
    for cause in causes().values():
        for text in (cause.title, cause.means, cause.fix):
            assert text
            assert "\n" not in text


def test_cause_rule_expressions_compile() -> None:
    """Every expression of the rules compiles."""
    for cause in causes().values():
        for sign in cause.signs:
            for expression in (sign.pattern, sign.unless or "", sign.near):
                re.compile(expression)


def test_restartable_causes_are_transient() -> None:
    """A cause that a restart helps against is transient."""
    assert cause_named("rank_killed").transient
    assert not cause_named("disk_full").transient
    assert cause_named("cuda_oom").then == "shrink"


def test_unknown_cause_is_transient() -> None:
    """An unknown code counts as transient."""
    assert cause_named("never heard of") is UNKNOWN
    assert UNKNOWN.transient


def test_stable_cause_codes_exist() -> None:
    """The codes that other programs rely on exist."""
    assert set(causes()) >= set(NAMES.split())
