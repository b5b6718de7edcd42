"""Models whose packed forward raises here keep their checkpoints under ZeRO-3: the probe leaves nothing gathered."""

from __future__ import annotations

import json

import pytest

from dsrun.runs.records import read_records
from tests.integration.conftest import FP32, make_tokenizer, many_runs

pytestmark = [pytest.mark.train, pytest.mark.exhaustive]

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 1, "state_size": 8, "tie_word_embeddings": False,
}  # fmt: skip
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
FAMILIES = {
    "qwen3_5_text": LINEAR,
    "qwen3_next": LINEAR | {
        "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    },
    "mamba": {},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 16},
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64},
    "granitemoehybrid": MAMBA | {
        "layer_types": ["mamba", "attention"], "num_local_experts": 2, "num_experts_per_tok": 1,
        "shared_intermediate_size": 16,
    },
    "zamba2": {
        "mamba_d_state": 8, "mamba_ngroups": 1, "n_mamba_heads": 8, "mamba_headdim": 8, "chunk_size": 16,
        "layers_block_type": ["mamba", "hybrid"], "num_mem_blocks": 1, "use_mem_rope": True, "adapter_rank": 4,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(pairs, tmp_path_factory):
    """Each trained for two steps with a checkpoint after the first, and again to the third."""
    from transformers import AutoConfig

    scratch = tmp_path_factory.mktemp("runs")
    runs = []
    for kind, more in FAMILIES.items():
        model = scratch / "models" / kind
        make_tokenizer().save_pretrained(model)
        known = AutoConfig.for_model(kind)
        sizes = {name: value for name, value in SIZES.items() if name in known.to_dict() | known.attribute_map}
        type(known)(**sizes | more).save_pretrained(model)
        arguments = [
            "--model", str(model), "--from-scratch", "--train-file", pairs["train"], "--zero", "3", *FP32,
            "--global-batch-size", "8", "--micro-batch-size", "4", "--logging-steps", "1", "--save-steps", "1",
            "--output", str(scratch / kind),
        ]  # fmt: skip
        runs += [[*arguments, "--max-steps", "2"], [*arguments, "--max-steps", "3", "--resume", "auto"]]
    many_runs(runs, ranks=2, scratch=scratch)
    return scratch


@pytest.mark.parametrize("kind", FAMILIES)
def test_family_is_saved_and_resumed_under_zero_3(ran, kind):
    folder = ran / kind
    steps = [row["step"] for row in read_records(folder / "metrics.jsonl") if "loss" in row]
    assert steps == [1, 2, 3]
    assert (folder / "checkpoint-3").is_dir()
    assert (folder / "model" / "model.safetensors").is_file()
    facts = json.loads((folder / "run.json").read_text())["packing"]
    assert facts["method"] is None
    assert "Nested" not in facts["reason"]
