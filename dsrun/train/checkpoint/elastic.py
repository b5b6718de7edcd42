"""Elastic resume: a checkpoint saved by another number of ranks, or under another ZeRO stage, converted for this run.

The global batch, the order of samples and the count of optimizer steps are the same on any number of ranks
(batches.py). The optimizer's partitions are not, and go through DeepSpeed's universal checkpoint: made once, by one
process, into `RUN/.universal/`, and never into the checkpoint, whose manifest would no longer be true."""

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, set_seed

from dsrun.errors import ToolError, UsageError
from dsrun.runs.commit import CONVERTED
from dsrun.runs.heartbeat import SignOfLife
from dsrun.runs.manifest import MANIFEST
from dsrun.runs.records import write_json_atomic
from dsrun.system.files import read_object
from dsrun.system.host import disk_free
from dsrun.system.terminal.display import NotePrinter, size_text
from dsrun.train.base.distributed import acquire_lock
from dsrun.train.base.refusals import refusal, refuse
from dsrun.train.checkpoint import plain
from dsrun.train.checkpoint.layout import (
    OPTIMIZER_STATE,
    CheckpointLayout,
    CheckpointSource,
    layout_of,
    write_schedule,
    write_universal,
)
from dsrun.train.checkpoint.zero_shards import ZeroCheckpoint, load

logger = logging.getLogger(__name__)

NOTE = "source.json"
VERSION = 2
# Files of a Trainer checkpoint that are the same for any number of ranks and any stage.
SHARED = ("trainer_state.json", "scaler.pt")


@dataclass(frozen=True)
class AdaptedCheckpoint:
    """What this run resumes from. `source` is the checkpoint as the user knows it, `path` what the Trainer loads,
    `deepspeed` the changes of DeepSpeed's configuration that the load needs. `reseed`: ranks that the checkpoint has no
    random states for draw new ones; `converted`: the optimizer comes through a universal checkpoint."""

    path: Path
    source: Path
    deepspeed: dict[str, Any] = field(default_factory=dict)
    reseed: bool = False
    converted: bool = False

    def configure(self, deepspeed: dict[str, Any] | None) -> dict[str, Any] | None:
        """DeepSpeed's configuration with the changes; the one given is left as it is."""
        if deepspeed is None or not self.deepspeed:
            return deepspeed
        changed = dict(deepspeed)
        for block, values in self.deepspeed.items():
            changed[block] = {**changed.get(block, {}), **values}
        return changed


def adapt(
    checkpoint: Path,
    layout: CheckpointLayout,
    *,
    run: Path,
    notify: NotePrinter,
    beat: SignOfLife = lambda: None,
    trained: Callable[[], plain.TrainerOrder] | None = None,
    built: bool = False,
) -> AdaptedCheckpoint:
    """`checkpoint` as a run of `layout` can load it. Call it on every rank: one works, the others wait at a file lock,
    not in a collective that would time out, and call `beat`. `trained` yields the order of parameters in the Trainer's
    own optimizer, needed between ZeRO and plain DDP. `built`: the engine exists already, and its configuration can
    change no more. Raises UsageError where DeepSpeed has no way, and for a damaged checkpoint."""
    saved = layout_of(checkpoint)
    reseed = saved.world_size != layout.world_size
    change = saved.change_to(layout)
    if change == "none" or (change == "order" and not built):
        changes = {} if change == "none" else {"zero_optimization": {"round_robin_gradients": saved.round_robin}}
        return AdaptedCheckpoint(checkpoint, checkpoint, deepspeed=changes, reseed=reseed)
    as_saved = f"--nproc {saved.world_size} --zero {saved.stage}"
    refuse("convert", checkpoint=checkpoint, saved=saved, layout=layout, as_saved=as_saved)
    if layout.stage and built and layout.round_robin:
        raise ToolError(f"{checkpoint}: saved by another number of ranks, and this run's round_robin_gradients is on")
    folder = run / CONVERTED / (checkpoint.name if layout.stage else f"{checkpoint.name}-plain")
    note = {"version": VERSION, "source": fingerprint(checkpoint), "fp16": layout.fp16}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with acquire_lock(folder.parent / ".lock", beat):
        if read_object(folder / NOTE) != note:
            notify(f"{checkpoint.name}: {saved.description} → {layout.description}")
            if trained is None and not (saved.stage and layout.stage):
                raise UsageError(f"{checkpoint}: saved without ZeRO, and this run uses it", fix="use --zero 0")
            order = trained() if trained and not (saved.stage and layout.stage) else plain.TrainerOrder([], None)
            _convert(checkpoint, saved, layout, folder=folder, note=note, order=order, beat=beat)
    changes = {"checkpoint": {"load_universal": True}} if layout.stage else {}
    if layout.stage in (1, 2):
        # The loader looks for each parameter where it would be without the shuffle (stage_1_and_2.py,
        # _link_all_hp_params), and would load other parameters' values.
        changes["zero_optimization"] = {"round_robin_gradients": False}
    return AdaptedCheckpoint(folder, checkpoint, deepspeed=changes, reseed=True, converted=bool(layout.stage))


def _convert(
    checkpoint: Path,
    saved: CheckpointLayout,
    layout: CheckpointLayout,
    *,
    folder: Path,
    note: dict[str, Any],
    order: plain.TrainerOrder,
    beat: SignOfLife,
) -> None:
    """Write `folder` atomically; the lock is held, so whatever is left there is of a dead process."""
    work = folder.with_name(f"{folder.name}.partial")
    for old in (work, folder):
        shutil.rmtree(old, ignore_errors=True)
    source: CheckpointSource = ZeroCheckpoint(checkpoint) if saved.stage else plain.PlainCheckpoint(checkpoint, order)
    if set(source.states) != set(plain.ADAM_STATES) and layout.stage in (0, 3):
        states = ", ".join(source.states) or "no state per weight"
        raise refusal("checkpoint.states", checkpoint=checkpoint, states=states, layout=layout.description)
    elements = sum(math.prod(parameter.shape) for parameter in source.parameters.values())
    needed, free = 4 * elements * (1 + len(source.states)), disk_free(folder.parent)
    if free < needed:
        raise refusal("checkpoint.no_room", needed=size_text(needed), folder=folder.parent, free=size_text(free))
    work.mkdir()
    try:
        for name in SHARED:
            if (checkpoint / name).is_file():
                shutil.copy2(checkpoint / name, work / name)
        schedule = write_schedule(checkpoint, source, work, saved, layout)
        if layout.stage:
            write_universal(source, work, schedule=schedule, fp16=layout.fp16, beat=beat)
        else:
            plain.write_plain(source, checkpoint, work, order, beat=beat)
        write_json_atomic(work / NOTE, note)
        os.sync()
        work.rename(folder)
    except OSError as error:
        raise UsageError(f"converting {checkpoint}: {error.strerror}: {error.filename}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def fingerprint(checkpoint: Path) -> str:
    """A digest by which another checkpoint of the same name differs: of its manifest, else of its files' sizes and
    times."""
    manifest = checkpoint / MANIFEST
    if manifest.is_file():
        return hashlib.sha256(manifest.read_bytes()).hexdigest()
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    facts = [(str(p.relative_to(checkpoint)), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def discard(run: Path) -> None:
    shutil.rmtree(run / CONVERTED, ignore_errors=True)


class ElasticResumeCallback(TrainerCallback):
    """Between the load of a converted checkpoint and the first step: the engine becomes an ordinary one. The conversion
    is removed once the run has a checkpoint of its own."""

    def __init__(self, trainer: Any, start: AdaptedCheckpoint, *, run: Path) -> None:
        self.trainer = trainer
        self.start = start
        self.run = run

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.start.converted:
            finish_universal_load(self.trainer.model_wrapped, self.start.path)
        if self.start.reseed:
            # Ranks that the checkpoint has random states for get those when the epoch begins, after this.
            set_seed(seed_of(args.seed, state.global_step, args.process_index))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and not self.trainer.save_again:
            discard(self.run)


def seed_of(seed: int, step: int, rank: int) -> int:
    """A seed for a rank that joins at `step`: the same in every attempt, another on every rank and at every step."""
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def finish_universal_load(engine: Any, folder: Path) -> None:
    """Undo what the load of the universal checkpoint in `folder` leaves in the engine.

    load_universal stays on, and the next load would look for a universal checkpoint. ZeRO-3's loader gives one and the
    same hyperparameters and step to all groups (stage3.py, load_hp_checkpoint_state_from_checkpoint_dir_stage3). As a
    tensor, which torch's optimizers need, the step would be counted up once per group and step; an integer is right for
    DeepSpeed's Adam alone."""
    engine._config.load_universal_checkpoint = False
    base = engine.optimizer.optimizer
    tag = (folder / "latest_universal").read_text()
    for group, saved in zip(base.param_groups, load(folder / tag / OPTIMIZER_STATE)["param_groups"], strict=False):
        group.update({name: value for name, value in saved.items() if name != "params"})
    if not type(base).__module__.startswith("torch.optim"):
        return
    on_device = any(group.get("fused") or group.get("capturable") for group in base.param_groups)
    for parameter, state in base.state.items():
        if "step" in state:
            place = parameter.device if on_device else torch.device("cpu")
            state["step"] = torch.tensor(float(state["step"]), dtype=torch.float32, device=place)


@contextmanager
def best_checkpoint(trainer: Any, *, run: Path) -> Iterator[None]:
    """Around the Trainer's load of the best checkpoint: it may be older than an elastic resume."""
    best = trainer.state.best_model_checkpoint
    if best is None or not trainer.is_deepspeed_enabled:
        yield
        return
    layout = CheckpointLayout.wanted(trainer.split.world_size, trainer.ds_config)
    start = adapt(Path(best), layout, run=run, notify=logger.info, built=True)
    engine = trainer.model_wrapped
    engine._config.load_universal_checkpoint = start.converted
    trainer.state.best_model_checkpoint = str(start.path)
    try:
        yield
    finally:
        engine._config.load_universal_checkpoint = False
        trainer.state.best_model_checkpoint = best
        if trainer.args.should_save and start.converted:
            discard(run)
