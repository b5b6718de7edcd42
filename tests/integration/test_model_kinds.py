"""Less usual models and requests: no gradient, routers, own losses, random weights, generation from prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsrun.runs.records import read_records
from tests.integration.conftest import FP32, make_tokenizer, many_runs, records

pytestmark = pytest.mark.train

SEQ2SEQ_SHAPE = {
    "vocab_size": 64, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64,
    "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1, "dropout": 0.0,
}  # fmt: skip
CAUSAL_SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
ROUTERS = {
    "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 10.0,
}  # fmt: skip
OWN_LOSS = """
from transformers import LlamaForCausalLM


class OffsetModel(LlamaForCausalLM):
    def forward(self, input_ids=None, attention_mask=None, labels=None):
        outputs = super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
        if labels is not None:
            outputs.loss = outputs.loss + 100
        return outputs
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    import torch
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        MarianConfig,
        MarianMTModel,
        MixtralConfig,
        MixtralForCausalLM,
    )

    folder = tmp_path_factory.mktemp("kinds")
    torch.manual_seed(0)
    made = {
        "marian": MarianMTModel(MarianConfig(**SEQ2SEQ_SHAPE)),
        "mixtral": MixtralForCausalLM(MixtralConfig(**CAUSAL_SHAPE, **ROUTERS)),
        "dense": LlamaForCausalLM(LlamaConfig(**CAUSAL_SHAPE)),
        "own": LlamaForCausalLM(LlamaConfig(**CAUSAL_SHAPE)),
    }
    made["tokens"] = made["dense"]
    for name, model in made.items():
        model.save_pretrained(folder / name)
        tokenizer = make_tokenizer()
        if name == "tokens":
            tokenizer.add_tokens(["new1", "new2"])
        tokenizer.save_pretrained(folder / name)
    (folder / "own" / "modeling_offset.py").write_text(OWN_LOSS)
    config = json.loads((folder / "own" / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_offset.OffsetModel"}
    (folder / "own" / "config.json").write_text(json.dumps(config))
    return {name: str(folder / name) for name in made}


@pytest.fixture(scope="module")
def ran(models, pairs, tmp_path_factory) -> Path:
    """The run folders KIND-STAGE-RANKS-MICRO, each of a global batch of 8."""
    scratch = tmp_path_factory.mktemp("runs")
    common = [
        "--train-file", pairs["train"], "--global-batch-size", "8", *FP32, "--max-steps", "3", "--logging-steps", "1",
        "--learning-rate", "0.001", "--save-strategy", "no",
    ]  # fmt: skip
    (scratch / "prompts.txt").write_text("w1 w2 w3\nw4\n")
    more = {
        "own": ["--trust-remote-code"],
        "scratch": ["--from-scratch"],
        "tokens": ["--lora", "2"],
        "generate": [
            "--validation-file",
            pairs["validation"],
            "--predict-with-generate",
            "--train-sampling-strategy",
            "random",
            "--sample-prompts",
            str(scratch / "prompts.txt"),
        ],
    }
    cases = {
        1: [("marian", 0, 8), ("mixtral", 0, 8), ("mixtral", 0, 1), ("own", 0, 8), ("own", 0, 2), ("scratch", 0, 8),
            ("scratch", 3, 8), ("generate", 0, 8), ("tokens", 0, 8)],
        2: [("marian", 0, 4), ("mixtral", 0, 2), ("mixtral", 2, 4), ("own", 2, 1), ("scratch", 2, 4),
            ("scratch", 3, 2), ("generate", 3, 2), ("tokens", 2, 4)],
    }  # fmt: skip
    for ranks, found in cases.items():
        runs = [
            [
                "--model", models.get(kind, models["dense"]), "--zero", str(stage), "--micro-batch-size", str(micro),
                *common, *more.get(kind, []), "--output", str(scratch / f"{kind}-{stage}-{ranks}-{micro}"),
            ]
            for kind, stage, micro in found
        ]  # fmt: skip
        many_runs(runs, ranks=ranks, scratch=scratch)
    return scratch


def test_model_with_parameters_without_gradient_trains_at_zero_0(ran):
    """Marian's positions are computed: loaded, they are parameters that get no gradient, which DDP waits for."""
    assert len(records(ran / "marian-0-1-8", "loss")) == 3
    assert records(ran / "marian-0-2-4", "loss") == pytest.approx(records(ran / "marian-0-1-8", "loss"), rel=1e-4)


def test_router_loss_counts_once_however_the_batch_is_cut(ran):
    """Balance is measured in each micro batch, so it is not the same number; but it does not grow with their count."""
    whole = records(ran / "mixtral-0-1-8", "loss")
    assert whole[0] > 20, "the routers weigh more than the cross entropy"
    for cut in ("mixtral-0-1-1", "mixtral-0-2-2", "mixtral-2-2-4"):
        assert records(ran / cut, "loss")[0] == pytest.approx(whole[0], rel=0.1), cut


def test_own_loss_of_remote_code_used(ran):
    first = records(ran / "own-0-1-8", "loss")
    assert 103 < first[0] < 106, "cross entropy over 64 words plus 100"
    for cut in ("own-0-1-2", "own-2-2-1"):
        assert records(ran / cut, "loss") == pytest.approx(first, rel=1e-4), cut


def test_random_weights_the_same_under_every_stage_and_number_of_ranks(ran):
    first = records(ran / "scratch-0-1-8", "loss")
    for cut in ("scratch-3-1-8", "scratch-2-2-4", "scratch-3-2-2"):
        assert records(ran / cut, "loss") == pytest.approx(first, rel=1e-4), cut


def test_causal_model_scored_by_what_it_writes_after_the_prompt(ran, pairs):
    """The same text on any ranks and stage, and without the prompt, half of whose words the reference repeats."""
    rows = [json.loads(line) for line in Path(pairs["validation"]).read_text().splitlines()]
    folder = ran / "generate-0-1-8"
    examples = read_records(folder / "predictions-validation.jsonl")
    assert [(e["source"].strip(), e["reference"]) for e in examples] == [(r["source"], r["target"]) for r in rows]
    assert not any(e["prediction"].startswith(e["source"].strip()) for e in examples)
    assert read_records(ran / "generate-3-2-2" / "predictions-validation.jsonl") == examples
    (scores,) = [row for row in read_records(folder / "metrics.jsonl") if "eval_bleu" in row]
    assert scores["eval_bleu"] < 10


def test_samples_written_to_own_prompts(ran):
    samples = read_records(ran / "generate-0-1-8" / "samples.jsonl")
    assert [(each["step"], each["prompt"]) for each in samples] == [(3, "w1 w2 w3"), (3, "w4")]
    assert all(each["text"] and not each["text"].startswith(each["prompt"]) for each in samples)
    sharded = read_records(ran / "generate-3-2-2" / "samples.jsonl")
    assert [each["text"] for each in sharded] == [each["text"] for each in samples]


@pytest.mark.parametrize("run", ["tokens-0-1-8", "tokens-2-2-4"])
def test_new_tokens_trained_under_lora_and_saved_small(ran, models, run):
    """The adapter holds their rows alone, and the merged model the whole embedding."""
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    saved = load_file(ran / run / "adapter" / "adapter_model.safetensors")
    rows = {name: tuple(value.shape) for name, value in saved.items() if "lora_" not in name}
    assert set(rows.values()) == {(2, 32)}
    base = AutoModelForCausalLM.from_pretrained(models["tokens"])
    base.resize_token_embeddings(66)
    ids = torch.tensor([[64, 5, 65, 9]])
    adapted = PeftModel.from_pretrained(base, ran / run / "adapter")(ids).logits
    merged = AutoModelForCausalLM.from_pretrained(ran / run / "model")(ids).logits
    torch.testing.assert_close(merged, adapted, rtol=1e-4, atol=1e-4)
