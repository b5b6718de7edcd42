"""docs/diagnose.md names every cause."""

from pathlib import Path

from dsrun.diagnosis.rules import PART, causes, markdown

PAGE = Path(__file__).parents[3] / "docs" / "diagnose.md"
# The names that other programs rely on; more may be added, none may be renamed.
NAMES = """
none cuda_oom host_oom_killed cpu_shm_bus_error dataloader_worker_killed nccl_timeout nccl_network address_in_use
rendezvous_timeout libuv_missing cuda_toolkit_mismatch no_kernel_image cuda_home_missing jit_build_failed libaio_missing
illegal_instruction ds_config_mismatch ds_config_invalid bf16_unsupported loss_scale_overflow nan_loss
ddp_unused_parameters checkpoint_world_size_mismatch checkpoint_corrupt checkpoint_shape_mismatch zero3_empty_weights
disk_full wandb_login hf_gated_or_offline dataset_not_found dataset_format tokenizer_pad_token_missing
device_side_assert slurm_time_limit slurm_preempted slurm_cancelled slurm_node_fail slurm_invalid_request
python_abi_undefined_symbol unknown_training_argument device_ordinal ecc_or_xid_error permission_denied rank_killed
rank_hung agent_killed node_lost deterministic_crash interrupted unknown
"""


def test_stable_cause_codes_exist() -> None:
    """The codes that other programs rely on exist."""
    assert set(causes()) >= set(NAMES.split())


def test_diagnose_docs_page_is_up_to_date() -> None:
    """The table in docs/diagnose.md is up to date."""
    text = PAGE.read_text(encoding="utf-8")
    assert PART.inserted(text) == text


def test_cause_reference_has_row_for_every_cause() -> None:
    """Every cause has a row in the reference."""
    rows = [line.split(" | ")[0] for line in markdown().splitlines()[2:]]
    assert rows == [f"| `{code}`" for code in causes() if code != "none"]
