"""Without ZeRO a run takes from its checkpoints all weights, also those whose names in files are not the modules'."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GptOssConfig, MixtralConfig, Qwen3MoeConfig

from tests.integration.conftest import SHORT, make_tokenizer, many_runs, records
from tests.unit.train.test_whole_models import TEXT, make_whole

pytestmark = pytest.mark.train

EXPERTS = TEXT | {"num_local_experts": 4, "num_experts_per_tok": 2}
CONFIGS = {
    "mixtral": MixtralConfig(**EXPERTS),
    "qwen3_moe": Qwen3MoeConfig(**TEXT, num_experts=4, moe_intermediate_size=8, num_experts_per_tok=2),
    "gpt_oss": GptOssConfig(**EXPERTS),
}
# Multimodal, trained as text; the experts of one have other names in files.
PARTS = {"gemma3": "language_model.model.", "qwen3_5_moe": "model.language_model."}
FAMILIES = [*CONFIGS, *PARTS]
# Saved under one stage and resumed under the other; some weights are not trained.
STAGES = {"2-to-0": ("2", "0"), "0-to-2": ("0", "2")}
FROZEN = ["--freeze", "model.layers.0.*"]
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def runs(pairs, tmp_path_factory):
    """Per family a run of four steps, and one that goes on from its second; per change of the stage the same; and LoRA,
    whose adapters are saved by the modules' names."""
    root = tmp_path_factory.mktemp("plain")
    for kind, config in CONFIGS.items():
        AutoModelForCausalLM.from_config(config).save_pretrained(root / kind)
    for kind in PARTS:
        make_whole(root / kind, kind)
    for kind in FAMILIES:
        make_tokenizer().save_pretrained(root / kind)
    first, again = [], []

    def add(name, kind, stages, *more):
        flags = [
            "--model", str(root / kind), "--train-file", pairs["train"], *SHORT, "--max-steps", "4", "--save-steps",
            # Where one lies beside the model, transformers makes of it what the family has.
            "2", "--tokenizer", str(root / "mixtral"), *more,
        ]  # fmt: skip
        first.append([*flags, "--zero", stages[0], "--output", str(root / f"{name}-whole")])
        again.append([*flags, "--zero", stages[1], "--output", str(root / f"{name}-again")])

    for kind in FAMILIES:
        best = ["--eval_strategy", "steps", "--eval_steps", "2", "--metric_for_best_model", "loss"]
        # The worse loss counts as the better, so that the best is not the last.
        best += ["--greater_is_better", "true", "--load_best_model_at_end", "--validation-file", pairs["validation"]]
        add(kind, kind, "00", *best)
    for name, stages in STAGES.items():
        add(name, "mixtral", stages, *FROZEN)
    add("lora", "mixtral", "00", "--lora", "2", "--lora-target-parameters", "experts.gate_up_proj")
    many_runs(first, ranks=1, scratch=root)
    for line in again:
        name = line[-1].removesuffix("-again")
        shutil.copytree(f"{name}-whole/checkpoint-2", f"{line[-1]}/checkpoint-2")
        shutil.copy(f"{name}-whole/run.json", line[-1])
    many_runs(again, ranks=1, scratch=root)
    return root


def differing(one, other):
    ours, theirs = load_file(one), load_file(other)
    assert ours.keys() == theirs.keys()
    return [name for name, each in ours.items() if not torch.equal(each, theirs[name])]


@pytest.mark.parametrize("name", [*FAMILIES, "lora"])
def test_resumed_run_has_the_weights_of_one_that_ran_through(name, runs):
    file = "adapter_model.safetensors" if name == "lora" else FILE
    whole, again = (runs / f"{name}-{part}" for part in ("whole", "again"))
    assert differing(whole / "checkpoint-2" / file, whole / "checkpoint-4" / file) != []
    assert differing(whole / "checkpoint-4" / file, again / "checkpoint-4" / file) == []
    assert records(again, "loss") == records(whole, "loss")[2:]


@pytest.mark.parametrize("name", FAMILIES)
def test_final_model_has_the_weights_of_the_best_checkpoint(name, runs):
    for part in ("whole", "again"):
        run = runs / f"{name}-{part}"
        best = load_file(run / "checkpoint-2" / FILE)
        final = load_file(run / "model" / FILE)
        # A text part is put back under the whole model's names.
        text = {each.replace("model.", PARTS.get(name, "model."), 1): value for each, value in best.items()}
        assert text.keys() <= final.keys()
        assert [each for each, value in text.items() if not torch.equal(value, final[each])] == []


@pytest.mark.parametrize("name", STAGES)
def test_run_goes_on_under_another_stage(name, runs):
    whole, again = (load_file(runs / f"{name}-{part}" / "checkpoint-4" / FILE) for part in ("whole", "again"))
    assert whole.keys() == again.keys()
    assert [each for each in whole if not torch.allclose(whole[each], again[each], atol=1e-5)] == []
    expected = records(runs / f"{name}-whole", "loss")[2:]
    assert records(runs / f"{name}-again", "loss") == pytest.approx(expected, rel=1e-5)
