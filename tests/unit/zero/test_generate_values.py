"""Values: what the Trainer fills, what is written for DeepSpeed alone, presets, sizes and precision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsrun.hardware.gpu_facts import lookup
from dsrun.options import by_group
from dsrun.zero.generate.blocks import MOVED, HardwareFacts
from dsrun.zero.generate.config import SHIPPED, build, generate, render_json
from dsrun.zero.generate.explain import as_json, as_text, explain, meanings, notices
from dsrun.zero.generate.presets import (
    LARGEST_BUCKET,
    PRESETS,
    SMALLEST_BUCKET,
    reduce_bucket,
    sizes,
)
from dsrun.zero.generate.spec import ZeroSpec, flag_of, options
from dsrun.zero.view import FILLED, ZERO

WIDTH = 4096
FULL = {
    "optimizer": "adamw",
    "scheduler": "linear",
}


def flat(spec, **facts):
    return {path: because.value for path, because in build(spec, HardwareFacts(**facts)).items()}


def autos(spec, **facts):
    own = f"{ZERO}.zenflow"  # DeepSpeed's own "auto", which nobody fills
    return {path for path, value in flat(spec, **facts).items() if value == "auto" and not path.startswith(own)}


def test_auto_only_where_trainer_fills_it():
    found = set()
    for spec in SHIPPED.values():
        found |= autos(spec)
    found |= autos(ZeroSpec(stage=3, **FULL)) | autos(ZeroSpec(stage=3, optimizer="adamw", scheduler="cosine"))
    # warmup_min_lr is 0 whoever fills it.
    assert found == set(FILLED) - {"scheduler.params.warmup_min_lr"}


def test_transformers_fills_every_auto(tmp_path):
    """The Trainer's own code, on a configuration with every "auto" that the generator writes."""
    from types import SimpleNamespace

    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    config = generate(ZeroSpec(stage=3, **FULL))
    arguments = TrainingArguments(str(tmp_path), deepspeed=config, use_cpu=True, bf16=True, report_to="none")
    filled = arguments.hf_deepspeed_config
    filled.trainer_config_process(arguments)
    filled.trainer_config_finalize(arguments, SimpleNamespace(config=SimpleNamespace(hidden_size=WIDTH)), 100)
    try:
        assert '"auto"' not in render_json(filled.config)
        assert filled.config["bf16"]["enabled"] is True
    finally:
        unset_hf_deepspeed_config()


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("facts", [{}, {"hidden_size": WIDTH}])
def test_no_auto_for_deepspeed_without_trainer(stage, facts):
    offload = {"offload_optimizer": "cpu"} if stage else {}
    assert autos(ZeroSpec(stage=stage, target="deepspeed", **offload), **facts) == set()


@pytest.mark.parametrize("target", ["trainer", "deepspeed"])
@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_moved_defaults_are_always_written(target, precision):
    spec = ZeroSpec(stage=3, target=target, precision=precision, offload_optimizer="cpu", offload_param="cpu")
    assert set(MOVED) <= set(flat(spec))


def test_moved_defaults_match_installed_deepspeed():
    from deepspeed.runtime.constants import GRADIENT_CLIPPING_DEFAULT
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    written = flat(ZeroSpec(stage=3, target="deepspeed", offload_optimizer="cpu", offload_param="cpu"))
    today = {
        "gradient_clipping": GRADIENT_CLIPPING_DEFAULT,
        "bf16.check_grad_overflow": DeepSpeedBF16Config().check_grad_overflow,
        f"{ZERO}.offload_optimizer.pin_memory": DeepSpeedZeroOffloadOptimizerConfig().pin_memory,
        f"{ZERO}.offload_param.pin_memory": DeepSpeedZeroOffloadParamConfig().pin_memory,
    }
    assert set(today) == set(MOVED)
    assert {path: written[path] for path in today} == today


def test_rendering_is_deterministic():
    spec = ZeroSpec(stage=3, target="deepspeed", preset="aggressive", offload_optimizer="cpu")
    assert render_json(generate(spec)) == render_json(generate(replace(spec)))


@pytest.mark.parametrize(
    ("gpu", "model_type", "bf16", "fp16"),
    [
        ("h100", "llama", True, False),
        ("a100", "t5", True, False),
        ("v100", "llama", False, True),
        ("t4", "t5", False, False),
    ],
)
def test_precision_follows_gpu(gpu, model_type, bf16, fp16):
    found = flat(ZeroSpec(), gpu=lookup(gpu), model_type=model_type)
    assert (found["bf16.enabled"], found["fp16.enabled"]) == (bf16, fp16)


def test_bucket_size_follows_width_preset_and_gpu_memory():
    small, usual, large = (reduce_bucket(PRESETS[name], WIDTH, None) for name in PRESETS)
    assert (small, usual, large) == (WIDTH**2 // 2, WIDTH**2, 4 * WIDTH**2)
    wide = 32768
    by_gpu = [reduce_bucket(PRESETS["balanced"], wide, lookup(name)) for name in ("t4", "rtx 4090", "h100-80gb")]
    assert by_gpu == sorted(by_gpu)
    # 4.5 buffers of two bytes within 2% of the memory
    for name, bucket in zip(("t4", "rtx 4090", "h100-80gb"), by_gpu, strict=True):
        assert bucket * 9 <= 0.02 * lookup(name).memory_gib * 2**30
    assert reduce_bucket(PRESETS["balanced"], wide, None) == LARGEST_BUCKET
    assert reduce_bucket(PRESETS["conservative"], 64, lookup("t4")) == SMALLEST_BUCKET


@pytest.mark.parametrize("width", [2999, 3001, 4097])
def test_allgather_bucket_size_is_even(width):
    """DeepSpeed asserts it of the all-gather bucket, and squares of odd widths are odd."""
    assert generate(ZeroSpec(stage=2), hidden_size=width)[ZERO]["allgather_bucket_size"] % 2 == 0


def test_presets_are_ordered_by_memory_use():
    values = [flat(ZeroSpec(stage=3, preset=name, offload_optimizer="cpu"), hidden_size=WIDTH) for name in PRESETS]
    for key in (
        f"{ZERO}.reduce_bucket_size",
        f"{ZERO}.stage3_prefetch_bucket_size",
        f"{ZERO}.stage3_max_live_parameters",
        f"{ZERO}.stage3_param_persistence_threshold",
    ):
        first, second, third = (each[key] for each in values)
        assert first < second < third
    assert [each[f"{ZERO}.overlap_comm"] for each in values] == [False, True, True]
    assert [each[f"{ZERO}.offload_optimizer.pin_memory"] for each in values] == [False, True, True]
    assert sizes("balanced", WIDTH, None).live == 1_000_000_000


def test_option_wins_over_preset():
    spec = ZeroSpec(stage=3, preset="conservative", overlap_comm=True, reduce_bucket_size=12)
    block = generate(spec, hidden_size=WIDTH)[ZERO]
    assert (block["overlap_comm"], block["reduce_bucket_size"]) == (True, 12)


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        ({}, {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}),
        (
            {"micro_batch_size": 4, "accumulation": 2},
            {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
        ),
        (
            {"global_batch_size": 64, "micro_batch_size": 4},
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4},
        ),
        (
            {"global_batch_size": 64, "accumulation": 4},
            {"train_batch_size": 64, "gradient_accumulation_steps": 4},
        ),
        # DeepSpeed counts the ranks of a tensor-parallel group apart.
        (
            {"global_batch_size": 64, "micro_batch_size": 4, "autotp": 2},
            {"train_batch_size": 128, "train_micro_batch_size_per_gpu": 4},
        ),
    ],
)
def test_batch_sizes_without_trainer(asked, sizes):
    config = generate(ZeroSpec(target="deepspeed", **asked))
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert {name: config[name] for name in names if name in config} == sizes


def test_sequence_parallel_groups_are_left_to_trainer():
    alone = generate(ZeroSpec(target="deepspeed", sequence_parallel=4, gpus=16))
    assert (alone["sequence_parallel_size"], alone["data_parallel_size"]) == (4, 4)
    trainer = generate(ZeroSpec(sequence_parallel=4))
    assert "sequence_parallel_size" not in trainer
    assert trainer["seq_parallel_communication_data_type"] == "fp32"


def test_muon_learning_rate_and_schedule():
    """Muon gets a rate of its own, and no schedule that would level it."""
    config = generate(ZeroSpec(target="deepspeed", optimizer="muon", stage=3), hidden_size=4096)
    assert config[ZERO]["reduce_scatter"] is False
    assert config["optimizer"]["params"]["muon_lr"] == pytest.approx(5e-5 * 0.2 * 64, rel=0.05)
    assert config["scheduler"]["params"]["warmup_max_lr"] is None


@pytest.mark.parametrize("kind", ["adamw", "adam", "lion", "adagrad", "lamb", "sgd", "muon"])
def test_deepspeed_knows_every_optimizer(kind):
    import torch
    from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS

    block = generate(ZeroSpec(target="deepspeed", optimizer=kind, scheduler="none"))["optimizer"]
    assert block["type"].lower() in DEEPSPEED_OPTIMIZERS or hasattr(torch.optim, block["type"])
    assert not {"auto"} & {value for value in block["params"].values() if isinstance(value, str)}


def test_explain_covers_every_config_key():
    for spec in SHIPPED.values():
        rows = explain(spec, HardwareFacts())
        assert {row.key for row in rows} == set(flat(spec))
        assert all(row.does and row.why for row in rows)
        assert as_text(rows).count("because: ") == len(rows)
        assert '"version": 1' in as_json(rows)


def test_meanings_cover_options_and_moved_defaults():
    by_option = {each.metadata.get("key") for each in options().values()} - {None}
    blocks = {f"{ZERO}.zenflow", "activation_checkpointing"}
    assert (by_option - blocks) | set(MOVED) | set(FILLED) <= set(meanings())


def test_explain_names_the_flag_that_asked():
    rows = {row.key: row.why for row in explain(ZeroSpec(stage=3, hpz=8, overlap_comm=False), HardwareFacts())}
    assert rows[f"{ZERO}.zero_hpz_partition_size"] == "asked by --hpz 8"
    assert rows[f"{ZERO}.overlap_comm"] == "asked by --no-overlap-comm"


def test_every_option_has_group_and_unique_flag():
    assert "" not in by_group(ZeroSpec)
    flags = [flag_of(name) for name in options()]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("asked", "facts", "words"),
    [
        ({"precision": "bf16"}, {}, "--bf16"),
        ({"precision": "fp16"}, {"model_type": "t5"}, "t5 models overflow in fp16"),
        ({"deepcompile": True}, {}, "--torch_compile"),
        ({"sequence_parallel": 2}, {}, "sp_size=2"),
        ({"preset": "conservative"}, {}, "--gradient_checkpointing"),
        ({"optimizer": "adamw", "lr": 1e-4}, {}, "--learning_rate"),
        ({"gpu": "a100"}, {"gpu": lookup("a100")}, "different memory sizes"),
        ({"stage": 3, "qwz": True}, {}, "quantizer"),
        ({"offload_optimizer": "cpu"}, {}, "CPU Adam"),
    ],
)
def test_notices_for_what_config_cannot_express(asked, facts, words):
    """What the file cannot say is said in a notice beside it."""
    assert words in "\n".join(notices(ZeroSpec(**asked), HardwareFacts(**facts)))


def test_no_notices_for_default_specs():
    assert notices(ZeroSpec(), HardwareFacts()) == []
    assert notices(ZeroSpec(stage=3, target="deepspeed"), HardwareFacts()) == []
