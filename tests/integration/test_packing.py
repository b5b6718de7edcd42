"""Packed runs learn what unpacked ones learn, and see every sample once."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dsrun.runs.records import read_records
from tests.integration.conftest import make_model, many_runs, phrase
from tests.sample_ledger import ledgers, not_once, seen, steps

SAMPLES = 24
STEPS = 4
# Rounding of fp32, over several steps.
RELATIVE = 2e-5
MODELS = ("llama", "gpt2", "qwen3", "t5", "bart")

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file of pairs whose lengths differ by a factor of ten; the whole of it is one global batch."""
    file = tmp_path_factory.mktemp("data") / "train.jsonl"
    rng = random.Random(0)
    sources = [phrase(i, rng.choice([2, 3, 4, 6, 20])) for i in range(SAMPLES)]
    file.write_text("".join(json.dumps({"source": s, "target": " ".join(s.split()[::-1])}) + "\n" for s in sources))
    return str(file)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Tiny models with weights and without dropout."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, BartConfig, GPT2Config, Qwen3Config, set_seed

    folder = tmp_path_factory.mktemp("models")
    found = {name: make_model(folder / name, name) for name in ("llama", "t5")}
    ids = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    sides = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    configs = {
        "gpt2": GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, **none, **ids),
        "qwen3": Qwen3Config(hidden_size=32, intermediate_size=64, num_hidden_layers=2, **heads, **ids),
        "bart": BartConfig(
            d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64, dropout=0.0, max_position_embeddings=128,
            decoder_start_token_id=1, forced_eos_token_id=None, **sides, **ids,
        ),
    }  # fmt: skip
    for name, config in configs.items():
        make_model(folder / name, "llama")
        set_seed(0)
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        kind.from_config(config).save_pretrained(folder / name)
        found[name] = folder / name
    return found


def arguments(model, data, output, *more):
    return [
        "--model", str(model), "--train-file", data, "--zero", "2", "--bf16", "false", "--global-batch-size",
        str(SAMPLES), "--micro-batch-size", "12", "--max-steps", str(STEPS), "--learning-rate", "0.01",
        "--logging-steps", "1", "--save-strategy", "no", "--sample-ledger", "--validation-split-percentage", "0",
        "--output", str(output), *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def ran(models, data, tmp_path_factory):
    """Run folders of each model, packed and in the plain order, on one rank; of some also on two."""
    scratch = tmp_path_factory.mktemp("runs")
    plain = ["--train-sampling-strategy", "random"]
    one = {f"{name}-{how}": (name, flags) for name in MODELS for how, flags in (("packed", []), ("plain", plain))}
    one["llama-stream"] = ("llama", ["--streaming", "true"])
    two = {f"{name}-packed-2": (name, ["--zero", "3", "--micro-batch-size", "4"]) for name in ("llama", "t5")}
    for ranks, cases in ((1, one), (2, two)):
        runs = [arguments(models[name], data, scratch / case, *flags) for case, (name, flags) in cases.items()]
        many_runs(runs, ranks=ranks, scratch=scratch)
    return scratch


def curve(folder: Path):
    rows = [row for row in read_records(folder / "metrics.jsonl") if "loss" in row]
    return [row["loss"] for row in rows], [row["grad_norm"] for row in rows], [row["tokens"] for row in rows]


@pytest.mark.parametrize("name", MODELS)
def test_packed_run_has_the_unpacked_curve(ran, name):
    """Where a step is the whole data set, both orders hold the same samples: loss and gradient norm agree."""
    packed, plain = curve(ran / f"{name}-packed"), curve(ran / f"{name}-plain")
    assert packed[0] == pytest.approx(plain[0], rel=RELATIVE)
    assert packed[1] == pytest.approx(plain[1], rel=10 * RELATIVE)
    assert packed[2] == plain[2], "as many tokens"
    assert packed[0][-1] < 0.95 * packed[0][0]


def test_stream_has_the_same_curve_without_padding(ran):
    """Each micro batch is one row, in the stream's own order."""
    joined, plain = curve(ran / "llama-stream"), curve(ran / "llama-plain")
    assert joined[0] == pytest.approx(plain[0], rel=RELATIVE)
    assert joined[2] == plain[2]
    assert {row["padding"] for row in read_records(ran / "llama-stream" / "metrics.jsonl") if "loss" in row} == {0.0}
    assert not_once(ledger := ledgers(ran / "llama-stream"), samples=SAMPLES) == []
    assert len(seen(ledger)) == SAMPLES * STEPS


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_packed_curve_is_the_same_on_two_ranks_under_zero_3(ran, name):
    one, two = curve(ran / f"{name}-packed"), curve(ran / f"{name}-packed-2")
    assert two[0] == pytest.approx(one[0], rel=RELATIVE)
    assert two[2] == one[2]


@pytest.mark.parametrize("case", [*(f"{name}-packed" for name in MODELS), "llama-packed-2", "t5-packed-2"])
def test_packed_run_sees_each_sample_once_with_little_padding(ran, case):
    folder = ran / case
    samples = json.loads((folder / "run.json").read_text())["packing"]
    assert samples["batches"] == "packed"
    assert samples["difference"] < 1e-4
    ledger = ledgers(folder)
    assert len(steps(ledger)) == STEPS
    assert not_once(ledger, samples=SAMPLES) == []
    assert len(seen(ledger)) == SAMPLES * STEPS
    padding = [row["padding"] for row in read_records(folder / "metrics.jsonl") if "loss" in row]
    without = ran / f"{case.split('-')[0]}-plain" / "metrics.jsonl"
    plain = [row["padding"] for row in read_records(without) if "loss" in row]
    assert max(padding) < 0.15 < min(plain)
