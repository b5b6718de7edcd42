"""What is loaded on real engines: files that lack weights are refused on all ranks, and every family loads sharded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    FSMTConfig,
    FSMTForConditionalGeneration,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PegasusConfig,
    PegasusForConditionalGeneration,
    RoFormerConfig,
    RoFormerForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
    xLSTMConfig,
    xLSTMForCausalLM,
)

from tests.integration.conftest import FP32, make_model, make_tokenizer, many_runs, phrase, records
from tests.integration.many_runs import MAY_FAIL

pytestmark = pytest.mark.train

GATE = "model.layers.1.mlp.gate_proj.weight"
ALLOWED = "--allow-missing-weights"
REFUSED = {
    "zero2": ["--zero", "2"],
    "zero3": ["--zero", "3"],
    "lora": ["--zero", "3", "--lora", "2"],
    "dpo": ["--zero", "3", "--task", "dpo"],
    "shape": ["--zero", "3", ALLOWED],
    "quantized": ["--zero", "3", "--quantization", "4bit", "--lora", "2"],
}
DRAWN = {
    "zero0-allowed": ["--zero", "0"],
    "zero3-allowed": ["--zero", "3"],
    "dpo2-allowed": ["--zero", "2", "--task", "dpo"],
    "dpo3-allowed": ["--zero", "3", "--task", "dpo"],
}
IDS = {"vocab_size": 64, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
PAIRS = {
    **IDS, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "dropout": 0.0,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64,
    "decoder_start_token_id": 0, "forced_eos_token_id": 1, "attention_dropout": 0.0, "activation_dropout": 0.0,
}  # fmt: skip
WHOLE = {
    **IDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
# Those whose rules unpack the shape of a weight.
FAMILIES = {
    "pegasus": lambda: PegasusForConditionalGeneration(PegasusConfig(**PAIRS)),
    "fsmt": lambda: FSMTForConditionalGeneration(FSMTConfig(src_vocab_size=64, tgt_vocab_size=64, **PAIRS)),
    "rwkv": lambda: RwkvForCausalLM(RwkvConfig(**WHOLE, attention_hidden_size=16, context_length=64)),
    "xlstm": lambda: xLSTMForCausalLM(xLSTMConfig(**IDS, hidden_size=32, num_hidden_layers=2, num_heads=2)),
    "roformer": lambda: RoFormerForCausalLM(RoFormerConfig(**WHOLE, is_decoder=True, max_position_embeddings=64)),
}
# A layer whose constructor alone draws its weights, and one whose rule draws those of its children's children.
SCRATCH = {
    "gpt": lambda: OpenAIGPTLMHeadModel(
        OpenAIGPTConfig(
            **IDS, n_embd=16, n_layer=1, n_head=2, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    ),
    "switch": lambda: SwitchTransformersForConditionalGeneration(
        SwitchTransformersConfig(
            **IDS, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, num_experts=2, dropout_rate=0.0,
            decoder_start_token_id=0, router_jitter_noise=0.0,
        )
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    for name, change in (("gone", None), ("shape", torch.zeros(8, 32))):
        file = make_model(folder / name, "llama") / "model.safetensors"
        weights = load_file(file)
        del weights[GATE]
        save_file(weights | ({} if change is None else {GATE: change}), file, metadata={"format": "pt"})
    for name, make in {**FAMILIES, **SCRATCH}.items():
        make().save_pretrained(folder / name)
        make_tokenizer().save_pretrained(folder / name)
    return {each.name: str(each) for each in folder.iterdir()}


@pytest.fixture(scope="module")
def ran(models, pairs, tmp_path_factory) -> Path:
    scratch = tmp_path_factory.mktemp("runs")
    rows = [{"prompt": f"{phrase(i, 3)} ", "chosen": phrase(i, 4), "rejected": phrase(i + 7, 2)} for i in range(20)]
    preferences = scratch / "preferences.jsonl"
    preferences.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = [
        *FP32, "--global-batch-size", "8", "--micro-batch-size", "4", "--max-steps", "2", "--logging-steps", "1",
        "--save-strategy", "no", "--packing", "off",
    ]  # fmt: skip

    def run(name: str, model: str, *flags: str) -> list[str]:
        data = str(preferences) if "dpo" in flags else pairs["train"]
        return ["--model", models[model], *flags, "--train-file", data, *common, "--output", str(scratch / name)]

    refused = [
        [MAY_FAIL, *run(name, "shape" if name == "shape" else "gone", *flags)] for name, flags in REFUSED.items()
    ]
    drawn = [run(name, "gone", *flags, ALLOWED) for name, flags in DRAWN.items()]
    families = [run(f"{name}-{stage}", name, "--zero", stage) for name in FAMILIES for stage in ("0", "3")]
    families += [
        run(f"{name}-{stage}", name, "--zero", stage, "--from-scratch") for name in SCRATCH for stage in ("0", "3")
    ]
    many_runs([*refused, *drawn, *families], ranks=2, scratch=scratch)
    return scratch


@pytest.mark.parametrize("case", REFUSED)
def test_missing_weight_refused_on_every_rank_before_the_first_step(ran, case):
    messages = [json.loads((ran / case / f"error-{rank}.json").read_text())["message"] for rank in (0, 1)]
    assert GATE in messages[0]
    assert messages[0] == messages[1]
    assert not records(ran / case, "loss")


def test_missing_weight_drawn_alike_under_every_stage(ran):
    assert records(ran / "zero3-allowed", "loss") == pytest.approx(records(ran / "zero0-allowed", "loss"), rel=1e-5)


@pytest.mark.parametrize("case", ["dpo2-allowed", "dpo3-allowed"])
def test_reference_of_dpo_has_the_same_drawn_weights(ran, case):
    """The first loss is ln 2 where policy and reference are one model."""
    assert records(ran / case, "loss")[0] == pytest.approx(0.693147, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_family_whose_rules_unpack_shapes_trains_alike_under_zero_3(ran, family):
    assert records(ran / f"{family}-3", "loss") == pytest.approx(records(ran / f"{family}-0", "loss"), rel=1e-4)


@pytest.mark.parametrize("family", SCRATCH)
def test_weights_from_scratch_are_drawn_alike_under_zero_3(ran, family):
    assert records(ran / f"{family}-3", "loss") == pytest.approx(records(ran / f"{family}-0", "loss"), rel=1e-4)
