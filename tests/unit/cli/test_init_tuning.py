"""What `dsrun init` proposes for a model on a place: all weights or LoRA, ZeRO stage, batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsrun.cli.init.data import InitData
from dsrun.cli.init.interview import InitInterview
from dsrun.cli.init.model import InitModel
from dsrun.cli.init.place import TrainingPlace
from dsrun.cli.init.tuning import InitTuning, ask_tuning
from dsrun.errors import FindingsError, UsageError
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.plan_request import cluster

NOTHING: dict[str, Any] = dict.fromkeys(("preset", "lora", "zero", "offload", "global_batch_size"))
DATA = InitData(source="", train_file=("train.jsonl",), row={})
CPU = TrainingPlace(source="", words="", world=1, cluster=None, host_memory=16, on_cpu=True)
# Billions of parameters -> width, layers, inner width.
SIZES = {1: (2048, 16, 8192), 8: (4096, 32, 14336), 70: (8192, 80, 28672)}


def llama(billions: int) -> InitModel:
    width, layers, inner = SIZES[billions]
    config = {
        "model_type": "llama", "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": width // 128, "num_key_value_heads": 8, "vocab_size": 128_256,
        "max_position_embeddings": 8192,
    }  # fmt: skip
    return InitModel(name="llama", source="", from_scratch=False, config=config, architecture=describe(config))


def gpus(text: str, host: float = 256) -> TrainingPlace:
    found = cluster(text)
    return TrainingPlace(source="", words="", world=found.world, cluster=found, host_memory=host, on_cpu=False)


def proposed(model: InitModel, place: TrainingPlace, data: InitData = DATA, **given: str) -> InitTuning:
    return ask_tuning(InitInterview(accept_defaults=True), NOTHING | given, model, data, place)


def test_all_weights_where_they_fit():
    found = proposed(llama(1), gpus("a100-80:8"))
    assert found.lora == (0, "all weights fit")
    assert found.zero["micro_batch_size"] * 8 <= found.batch.value
    assert "offload" not in found.zero
    assert found.why.startswith("as `--zero auto` plans: ZeRO-")


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (gpus("a100-80:1", host=32), "all weights fit only with master weights in bf16, which is less exact"),
        (gpus("a100-80:2", host=512), "all weights fit only with states in host memory, which is slow"),
        (gpus("a100-80:2", host=32), "all weights fit only beyond the preset's share of the GPUs' memory"),
        (gpus("rtx 4090:2", host=32), "all weights do not fit"),
    ],
    ids=["bf16 master", "offload", "tight", "nothing"],
)
def test_lora_where_all_weights_have_a_drawback(place, why):
    found = proposed(llama(8), place)
    assert found.lora == (16, why)


def test_given_rank_is_kept():
    assert proposed(llama(8), gpus("a100-80:8"), lora="8").lora == (8, "as --lora says")
    assert proposed(llama(8), gpus("a100-80:8"), lora="0").lora.value == 0


def test_nothing_fits_ends_with_what_would():
    with pytest.raises(FindingsError, match="llama: nothing fits 1 × rtx 4090") as caught:
        proposed(llama(70), gpus("rtx 4090:1", host=64))
    assert caught.value.fix


def test_batch_that_does_not_fit_with_the_gpus():
    with pytest.raises(UsageError, match="global batch 12 does not divide by 8 ranks"):
        proposed(llama(1), gpus("a100-80:8"), global_batch_size="12")


def test_preset_is_planned_with():
    small = proposed(llama(1), gpus("a100-80:1"), preset="conservative")
    large = proposed(llama(1), gpus("a100-80:1"), preset="aggressive")
    assert small.preset.value == "conservative"
    assert small.zero != large.zero


def test_fixed_strategy_is_not_planned():
    found = proposed(llama(70), gpus("rtx 4090:1"), zero="3", offload="cpu")
    assert found.zero == {"zero": "3", "offload": "cpu"}
    assert found.preset is None


def test_unknown_gpus_and_models_are_planned_by_the_run():
    place = replace(CPU, on_cpu=False, unknown="SLURM does not say which GPUs they are")
    found = proposed(llama(8), place)
    assert (found.zero, found.why) == (
        {"zero": "auto"}, "planned when the run starts: SLURM does not say which GPUs they are",
    )  # fmt: skip
    elsewhere = replace(llama(8), config=None, architecture=None)
    assert proposed(elsewhere, gpus("a100-80:8")).zero == {"zero": "auto"}


def test_lora_on_a_cpu_without_the_memory_for_all_weights(capsys):
    found = proposed(llama(8), CPU)
    assert found.lora == (16, "all weights take 120 GiB, and this machine has 16 GiB of memory")
    assert "on the CPU takes 120 GiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "rows", "batch"),
    [(CPU, None, 8), (gpus("a100-80:8"), None, 64), (gpus("a100-80:8"), 200, 16), (gpus("a100-80:3"), None, 66)],
    ids=["CPU", "GPUs", "little data", "three GPUs"],
)
def test_proposed_batch_divides_among_the_ranks(place, rows, batch):
    assert proposed(llama(1), place, replace(DATA, rows=rows)).batch.value == batch


def test_demo_keeps_its_own_batch():
    demo = InitModel(name="demo-t5", source="", from_scratch=False, config={"model_type": "t5"}, architecture=None)
    found = proposed(demo, gpus("a100-80:8"))
    assert (found.batch, found.lora.value, found.zero) == (None, 0, {"zero": "2"})
    with pytest.raises(UsageError, match="--lora 8: demo-t5 is trained from scratch"):
        proposed(demo, CPU, lora="8")
