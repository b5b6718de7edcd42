"""Ranks that share rows (--long-context) have the losses of one rank that has them whole."""

from __future__ import annotations

import pytest

from tests.integration.conftest import many_runs, records

STEPS = 4

pytestmark = pytest.mark.train


def arguments(model, data, output, *more):
    return [
        "--model", model, "--train-file", data["train"], "--validation-file", data["validation"], "--bf16", "false",
        "--global-batch-size", "4", "--micro-batch-size", "2", "--max-steps", str(STEPS), "--learning-rate", "0.01",
        "--logging-steps", "1", "--save-strategy", "steps", "--save-steps", "2",
        "--lr-scheduler-type", "constant", "--train-sampling-strategy", "random", "--output", str(output), *more,
    ]  # fmt: skip


def curve(folder):
    return [*records(folder, "loss"), *records(folder, "grad_norm"), records(folder, "eval_loss")[-1]]


def test_shared_rows_give_losses_of_whole_rows(tiny, pairs, tmp_path):
    """Losses, gradient norms and evaluation of two ranks that share each row, under ZeRO-2 and 3, are those of one rank
    without --long-context, and so are they after a resume."""
    many_runs([arguments(tiny["llama"], pairs, tmp_path / "whole", "--zero", "1")], ranks=1, scratch=tmp_path)
    long = ("--long-context", "64")
    half = arguments(tiny["llama"], pairs, tmp_path / "z3", "--zero", "3", *long)
    half[half.index("--max-steps") + 1] = "2"
    many_runs(
        [
            arguments(tiny["llama"], pairs, tmp_path / "z2", "--zero", "2", *long),
            half,
            arguments(tiny["llama"], pairs, tmp_path / "z3", "--zero", "3", *long),
        ],
        ranks=2,
        scratch=tmp_path,
    )
    whole = curve(tmp_path / "whole")
    assert len(records(tmp_path / "whole", "loss")) == STEPS
    assert curve(tmp_path / "z2") == pytest.approx(whole, rel=1e-4)
    assert curve(tmp_path / "z3") == pytest.approx(whole, rel=1e-4)


FAMILIES = {"mistral": "3", "qwen2": "2", "qwen3": "1"}


def make_family(folder, family):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        family, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
        head_dim=8, vocab_size=64, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def test_families_give_losses_of_whole_rows(tiny, pairs, tmp_path):
    """The other families, each at another ZeRO stage, with one key head, which both ranks then have, and with the MLP
    in two tiles."""
    # transformers would take the tokenizer class of each family for the words of this one. Adam would make whole steps
    # of gradients that are little more than rounding, by which processors differ; with a large epsilon, small ones.
    fixed = ("--tokenizer", tiny["llama"], "--adam-epsilon", "1e-4")
    models = {family: make_family(tmp_path / family, family) for family in FAMILIES}

    def runs(ranks, *more):
        made = {family: tmp_path / f"{family}-{ranks}" for family in FAMILIES}
        lines = [arguments(models[f], pairs, made[f], "--zero", stage, *fixed, *more) for f, stage in FAMILIES.items()]
        many_runs(lines, ranks=ranks, scratch=tmp_path)
        return {family: curve(folder) for family, folder in made.items()}

    whole = runs(1)
    shared = runs(2, "--long-context", "128")
    for family in FAMILIES:
        assert shared[family] == pytest.approx(whole[family], rel=1e-4), family
