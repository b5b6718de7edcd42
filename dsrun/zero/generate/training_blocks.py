"""The blocks beside ZeRO: batch, optimizer, scheduler, offload's helpers and what other switches bring along."""

from __future__ import annotations

from math import sqrt
from typing import Any

from dsrun.zero.generate import presets
from dsrun.zero.generate.blocks import MOVED, ConfigContext, FlatConfig, ReasonedValue, moved
from dsrun.zero.view import AUTO, ZERO

# DeepSpeed's name and the settings it takes (deepspeed/runtime/engine.py, _configure_basic_optimizer).
OPTIMIZERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "adamw": ("AdamW", ("lr", "betas", "eps", "weight_decay")),
    "adam": ("Adam", ("lr", "betas", "eps", "weight_decay")),
    "lion": ("Lion", ("lr", "betas", "weight_decay")),
    "adagrad": ("Adagrad", ("lr", "eps", "weight_decay")),
    "lamb": ("Lamb", ("lr", "betas", "eps", "weight_decay")),
    "sgd": ("SGD", ("lr", "weight_decay")),
    "muon": ("Muon", ("lr", "betas", "eps", "weight_decay")),
}
# Not in deepspeed/runtime/zero/utils.py, ZERO_SUPPORTED_OPTIMIZERS.
UNTESTED = frozenset({"lamb", "sgd"})
ADAM = frozenset({"adam", "adamw"})
# The defaults of the training arguments; below, optimizers to which these numbers mean something else. Lion steps by
# signs, so its rate is 3 to 10 times smaller (arXiv 2302.06675, 5); SGD and Adagrad do not rescale gradients as Adam.
DEFAULTS: dict[str, Any] = {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
OF_ITS_OWN: dict[str, dict[str, Any]] = {
    "lion": {"lr": 1e-5, "betas": [0.9, 0.99]},
    "sgd": {"lr": 1e-2},
    "adagrad": {"lr": 1e-3, "eps": 1e-10},
}
MUON_MOMENTUM = 0.95
# An orthogonal update times 0.2 · sqrt(width) moves weights as far as Adam's (Moonlight, arXiv 2502.16982, 2.2).
MUON_SCALE = 0.2
WARMUP_STEPS = 100
WARMUP_SHARE = 0.03
SCHEDULERS = {"warmup": "WarmupLR", "linear": "WarmupDecayLR", "cosine": "WarmupCosineLR"}
ZENFLOW_UPDATE = 4
ZENFLOW_SELECT = 64


def batch(case: ConfigContext) -> FlatConfig:
    """The three batch sizes: auto, given, or as many as DeepSpeed needs to work out the rest."""
    spec = case.spec
    micro, steps = spec.micro_batch_size, spec.accumulation
    total = spec.global_batch_size
    if case.trainer:
        sizes: dict[str, Any] = {
            "train_batch_size": AUTO if total is None else total * spec.autotp,
            "train_micro_batch_size_per_gpu": micro or AUTO,
            "gradient_accumulation_steps": steps or AUTO,
        }
        filled = {name: f"the Trainer fills it from {source}" for name, source in FILLED.items()}
        return {n: ReasonedValue(v, filled[n] if v == AUTO else "asked for") for n, v in sizes.items()}
    flat: FlatConfig = {}
    if total is not None:
        # DeepSpeed counts every rank, those of one tensor-parallel group too (runtime/config.py, world_size).
        ranks = f"; {spec.autotp} ranks that share the samples count {spec.autotp} times" if spec.autotp > 1 else ""
        flat["train_batch_size"] = ReasonedValue(total * spec.autotp, f"samples per optimizer step{ranks}")
    if micro is not None or total is None or steps is None:
        why = "asked for" if micro else "one sample always fits; give --micro-batch-size"
        flat["train_micro_batch_size_per_gpu"] = ReasonedValue(micro or 1, why)
    if steps is not None or total is None:
        why = "asked for" if steps else "no accumulation was asked for"
        flat["gradient_accumulation_steps"] = ReasonedValue(steps or 1, why)
    return flat


def clipping(case: ConfigContext) -> FlatConfig:
    """gradient_clipping."""
    norm, path = case.spec.gradient_clipping, "gradient_clipping"
    if norm is not None:
        return {path: ReasonedValue(norm, f"asked by --gradient-clipping {norm:g}")}
    if case.trainer:
        return {path: ReasonedValue(AUTO, f"the Trainer fills it from {FILLED[path]}; {MOVED[path]}")}
    return {path: ReasonedValue(1.0, moved(path, "what the training arguments have, too"))}


def optimizer_of(case: ConfigContext) -> str | None:
    """The optimizer that the file names, or None for the program's own."""
    spec = case.spec
    if spec.optimizer == "client":
        return None
    if spec.optimizer is None and case.trainer and spec.offload_optimizer == "none":
        return None
    return spec.optimizer or "adamw"


def optimizer(case: ConfigContext) -> FlatConfig:
    """The optimizer block and what belongs to it."""
    spec, kind = case.spec, optimizer_of(case)
    offloaded = spec.offload_optimizer != "none"
    if kind is None:
        if not offloaded:
            return {}
        why = "the program's own optimizer steps on the host, which DeepSpeed otherwise refuses"
        return {"zero_force_ds_cpu_optimizer": ReasonedValue(False, why)}
    name, takes = OPTIMIZERS[kind]
    why = f"asked by --optimizer {kind}" if spec.optimizer else "the usual choice"
    if offloaded and spec.optimizer is None:
        why = "DeepSpeed's vectorised CPU Adam, for states in host memory"
    flat = {"optimizer.type": ReasonedValue(name, why)}
    for key in takes:
        flat[f"optimizer.params.{key}"] = _setting(case, kind, key)
    if kind == "adam":
        flat["optimizer.params.adam_w_mode"] = ReasonedValue(False, 'DeepSpeed\'s "Adam" is AdamW by default')
    if kind in ADAM | {"muon"} and not offloaded:
        flat |= _torch_adam()
    if kind == "muon":
        flat |= _muon(case)
    if kind in UNTESTED and spec.stage:
        why = f"DeepSpeed has not tested {name} under ZeRO and wants this said"
        flat["zero_allow_untested_optimizer"] = ReasonedValue(True, why)
    return flat


def _setting(case: ConfigContext, kind: str, key: str) -> ReasonedValue:
    value = getattr(case.spec, key)
    if value is not None:
        value = list(value) if isinstance(value, tuple) else value
        return ReasonedValue(value, f"asked by --{key.replace('_', '-')}")
    path = f"optimizer.params.{key}"
    if case.trainer:
        return ReasonedValue(AUTO, f"the Trainer fills it from {FILLED[path]}")
    return ReasonedValue(usual(kind, key), "the optimizer's usual value")


def usual(kind: str | None, key: str) -> Any:
    """The number for a setting that nobody gave and nobody fills."""
    return OF_ITS_OWN.get(kind or "", {}).get(key, DEFAULTS[key])


def _torch_adam() -> FlatConfig:
    """torch_adam: written whenever Adam runs on the GPU."""
    why = "PyTorch's AdamW needs no compiler; DeepSpeed's FusedAdam is compiled at first use"
    return {"optimizer.params.torch_adam": ReasonedValue(True, why)}


def _muon(case: ConfigContext) -> FlatConfig:
    spec = case.spec
    flat = {"optimizer.params.momentum": ReasonedValue(MUON_MOMENTUM, "Muon's usual momentum, of all its groups")}
    rate = spec.muon_lr
    why = "asked by --muon-lr"
    if rate is None and not case.trainer:
        width = case.facts.hidden_size or presets.USUAL_WIDTH
        rate = float(f"{(spec.lr or DEFAULTS['lr']) * MUON_SCALE * sqrt(width):.1e}")
        why = f"0.2 · sqrt({width}) times the learning rate: Muon's updates then move weights as far as Adam's"
    if rate is not None:
        flat["optimizer.params.muon_lr"] = ReasonedValue(rate, why)
    return flat


def scheduler(case: ConfigContext) -> FlatConfig:
    """The scheduler block."""
    spec = case.spec
    kind = spec.scheduler
    if kind is None and not case.trainer:
        kind = "linear" if spec.total_steps else "warmup"
    if kind in (None, "none") or spec.optimizer == "client":
        return {}
    name = "scheduler.params."
    flat: FlatConfig = {"scheduler.type": ReasonedValue(SCHEDULERS[kind or ""], f"asked by --scheduler {kind}")}
    if spec.scheduler is None:
        flat["scheduler.type"] = ReasonedValue(SCHEDULERS[kind or ""], "what follows from --total-steps, given or not")
    if kind != "warmup":
        flat[name + "total_num_steps"] = _filled(case, "total_num_steps", spec.total_steps)
    steps = spec.warmup_steps
    if steps is None and not case.trainer:
        steps = max(1, round(spec.total_steps * WARMUP_SHARE)) if spec.total_steps else WARMUP_STEPS
    flat[name + "warmup_num_steps"] = _filled(case, "warmup_num_steps", steps)
    if kind == "cosine":
        flat[name + "warmup_min_ratio"] = ReasonedValue(0.0, "the warm-up begins at 0")
        flat[name + "cos_min_ratio"] = ReasonedValue(0.0, "where the cosine ends; DeepSpeed's own default is 0.0001")
    else:
        flat[name + "warmup_min_lr"] = ReasonedValue(0, "the warm-up begins at 0")
        flat[name + "warmup_max_lr"] = _top_rate(case)
    flat[name + "warmup_type"] = ReasonedValue(
        "linear", "a straight line, as everywhere else; DeepSpeed's own default is logarithmic"
    )
    return flat


def _filled(case: ConfigContext, key: str, value: int | None) -> ReasonedValue:
    path = f"scheduler.params.{key}"
    if value is None and case.trainer:
        return ReasonedValue(AUTO, f"the Trainer fills it from {FILLED[path]}")
    return ReasonedValue(value, "asked for, or 3% of --total-steps, or 100")


def _top_rate(case: ConfigContext) -> ReasonedValue:
    path, spec = "scheduler.params.warmup_max_lr", case.spec
    if spec.optimizer == "muon" and (spec.muon_lr is not None or not case.trainer):
        return ReasonedValue(None, "null keeps each group's own rate: a number would make Muon's and Adam's the same")
    if spec.lr is None and case.trainer:
        return ReasonedValue(AUTO, f"the Trainer fills it from {FILLED[path]}")
    rate = usual(spec.optimizer, "lr") if spec.lr is None else spec.lr
    return ReasonedValue(rate, "the learning rate")


def parallel(case: ConfigContext) -> FlatConfig:
    """What --sequence-parallel brings along."""
    spec = case.spec
    if spec.sequence_parallel == 1:
        return {}
    reduced = ReasonedValue("fp32", "sums over long sequences want fp32; written out because it depends on the release")
    flat = {"seq_parallel_communication_data_type": reduced}
    # Under the Trainer, accelerate builds the groups from TrainingArguments.parallelism_config; the key
    # sequence_parallel_size would make zero.Init count fewer ranks than the Trainer's batch arithmetic
    # (deepspeed/runtime/config.py, DeepSpeedConfig.__init__).
    if not case.trainer and spec.gpus:
        flat["sequence_parallel_size"] = ReasonedValue(spec.sequence_parallel, "asked by --sequence-parallel")
        flat["data_parallel_size"] = ReasonedValue(
            spec.gpus // spec.sequence_parallel, "--gpus divided by --sequence-parallel"
        )
    return flat


def extras(case: ConfigContext) -> FlatConfig:
    """Blocks that other switches bring along."""
    spec, flat = case.spec, FlatConfig()
    if spec.zenflow:
        flat |= _zenflow()
    if case.offloads("nvme"):
        why = "DeepSpeed's own default, written out; `ds_io` measures what suits a drive"
        numbers = {"block_size": 1_048_576, "queue_depth": 8, "intra_op_parallelism": 1}
        flags = {"single_submit": False, "overlap_events": True}
        flat |= {f"aio.{key}": ReasonedValue(value, why) for key, value in (numbers | flags).items()}
    asked = spec.activation_checkpointing
    if asked or (asked is None and case.preset.activation_checkpointing and not case.trainer):
        why = "asked for" if asked else f"preset {spec.preset}, for models that call deepspeed.checkpointing"
        for key in ("partition_activations", "cpu_checkpointing", "contiguous_memory_optimization"):
            flat[f"activation_checkpointing.{key}"] = ReasonedValue(False, f"{why}; off unless asked for")
    return flat


def _zenflow() -> FlatConfig:
    usual = "DeepSpeed's own default, written out"
    return {
        f"{ZERO}.zenflow.topk_ratio": ReasonedValue(0.1, usual),
        f"{ZERO}.zenflow.select_strategy": ReasonedValue(
            "step", "counts steps: DeepSpeed counts epochs only with a data loader of its own"
        ),
        f"{ZERO}.zenflow.select_interval": ReasonedValue(ZENFLOW_SELECT, "the important columns change slowly"),
        f"{ZERO}.zenflow.update_interval": ReasonedValue(
            ZENFLOW_UPDATE, "the CPU applies the rest every fourth step; takes the place of accumulation"
        ),
        f"{ZERO}.zenflow.full_warm_up_rounds": ReasonedValue(0, usual),
        f"{ZERO}.zenflow.overlap_step": ReasonedValue(False, usual),
    }


# What the Trainer fills, and from which training argument (transformers/integrations/deepspeed.py,
# HfTrainerDeepSpeedConfig.trainer_config_process and trainer_config_finalize, 5.23).
FILLED = {
    "train_batch_size": "the other two and the number of processes",
    "train_micro_batch_size_per_gpu": "--per_device_train_batch_size",
    "gradient_accumulation_steps": "--gradient_accumulation_steps",
    "gradient_clipping": "--max_grad_norm",
    "bf16.enabled": "--bf16",
    "fp16.enabled": "--fp16",
    f"{ZERO}.reduce_bucket_size": "the model's hidden_size",
    f"{ZERO}.stage3_prefetch_bucket_size": "the model's hidden_size",
    f"{ZERO}.stage3_param_persistence_threshold": "the model's hidden_size",
    "optimizer.params.lr": "--learning_rate",
    "optimizer.params.betas": "--adam_beta1 and --adam_beta2",
    "optimizer.params.eps": "--adam_epsilon",
    "optimizer.params.weight_decay": "--weight_decay",
    "scheduler.params.warmup_min_lr": "0",
    "scheduler.params.warmup_max_lr": "--learning_rate",
    "scheduler.params.warmup_num_steps": "--warmup_steps",
    "scheduler.params.total_num_steps": "the steps of the run",
}
