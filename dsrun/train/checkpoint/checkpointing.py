"""The Trainer's checkpoints: complete or invisible, rotated, and written on while training goes on if asked to."""

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import Seq2SeqTrainer, TrainerCallback
from transformers.trainer import _is_peft_model
from transformers.trainer_callback import ExportableState

from dsrun.runs import commit
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import STATE_FILE, complete_checkpoints
from dsrun.train.base.distributed import all_ready, local_ranks, my_rank, ranks
from dsrun.train.base.refusals import notice_of
from dsrun.train.checkpoint import snapshot
from dsrun.train.checkpoint.save import CheckpointSave, SaveFailed
from dsrun.train.model.adapters import saved_embeddings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SavingPolicy:
    """How checkpoints are kept: where, how many, with which facts in their manifests, and whether training goes on in
    the meantime (`background`); `own_config`: the user has set values in the model's config. `trust` loads them whoever
    wrote them; `beat` is called now and then, `notify` with a line for the user."""

    run: RunFolder
    keep: int = 3
    background: bool = False
    own_config: bool = False
    trust: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    beat: Callable[[], None] = lambda: None
    notify: Callable[[str], None] = logger.warning


class CheckpointingTrainer(Seq2SeqTrainer):
    """A Trainer whose checkpoints appear by a rename, once those of all ranks are written. The class that inherits has
    `on_checkpoint` (phase, folder, seconds, **details) and `seconds_not_training`. `save_again`: the last save
    failed, and is tried once more after the next step."""

    saving: SavingPolicy
    interrupted: bool
    save_again = False
    _under_way: CheckpointSave | None = None
    _snapshots: snapshot.SnapshotBuffers | None = None
    _told_of_memory = False
    _stall = 0.0
    _complete: set[int] | None = None

    def keep_checkpoints(self, saving: SavingPolicy) -> None:
        self.saving = saving
        if saving.background:
            self._snapshots = snapshot.SnapshotBuffers(share=local_ranks())
        self._remover = ThreadPoolExecutor(1, thread_name_prefix="remove")
        self.add_callback(_AfterEachStep(self))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        began = time.monotonic()
        self.finish_saving()
        run, step = self.saving.run, self.state.global_step
        is_last = self.interrupted or not self.is_in_train or step >= self.state.max_steps
        self._save_once(began, wait=is_last or self.save_again or not self.saving.background)
        if self.save_again and (is_last or step == self.state.best_global_step):
            # The next step has other weights, or is never made.
            self._save_once(began, wait=True)
        stall = time.monotonic() - began
        if not self.save_again:
            self.on_checkpoint("end", run.checkpoint(step), stall)
        self.seconds_not_training += stall

    def _save_once(self, began: float, *, wait: bool) -> None:
        run, step = self.saving.run, self.state.global_step
        self.on_checkpoint("begin", run.checkpoint(step), 0.0)
        with self._forgiven_once(step):
            snapshots = None if wait else self._snapshots
            self._under_way = save = CheckpointSave(run, step, beat=self.saving.beat, snapshots=snapshots)
            try:
                self._write(save)
            except OSError as error:
                # From a folder or a copied swap file on NVMe, which DeepSpeed makes by itself. The other ranks
                # wait in its next barrier, so this one can only end, and must clear up.
                save.close()
                commit.discard(run, step)
                failed = save.failed(error.strerror or str(error), error.errno)
                failed.passing = failed.passing and ranks() == 1
                raise failed from error
        self._stall = time.monotonic() - began
        if wait:
            self.finish_saving()

    @contextmanager
    def _forgiven_once(self, step: int) -> Iterator[None]:
        """Go on training where saving `step` fails by an error that may pass, unless the save before has failed too."""
        try:
            yield
        except SaveFailed as error:
            self._under_way = None
            if self.save_again or not error.passing:
                raise
            self.save_again = True
            self.saving.notify(f"{error.message}; it is tried once more")
            details = {"message": error.message, "cause": error.cause}
            self.on_checkpoint("failed", self.saving.run.checkpoint(step), 0.0, **details)

    def _write(self, save: CheckpointSave) -> None:
        """As the stock method, whose collectives and files these are, but for where the files go."""
        self.store_flos()
        if best := self.state.best_global_step:
            # The best checkpoint under the path it is going to have, also where the run folder was moved since.
            folder = self.saving.run.checkpoint(best)
            if best == save.step or folder.is_dir():
                self.state.best_model_checkpoint = str(folder)
        if self.is_deepspeed_enabled:
            snapshot.write_through(self.model_wrapped, lambda: self._under_way)
        self.save_model(str(save.folder), _internal_call=True)
        if not self.args.save_only_model:
            self._save_optimizer_and_scheduler(str(save.folder))
            scaler = save.folder / "scaler.pt"
            save.write(lambda: self._save_scaler(str(save.folder)))
            own = f"rng_state_{my_rank()}.pth" if self.args.world_size > 1 else "rng_state.pth"
            save.write(lambda: self._save_rng_state(str(save.folder)), save.folder / own)
            if my_rank() == 0 and scaler.exists():
                save.seal(scaler)
        if self.args.should_save:
            self._export_state()
            state = save.folder / STATE_FILE
            save.write(lambda: self.state.save_to_json(str(state)), state)

    def _export_state(self) -> None:
        # As `Trainer._save_checkpoint`, which raises KeyError for a callback that the resumed checkpoint did not know.
        kept = self.state.stateful_callbacks
        for each in (*self.callback_handler.callbacks, self.control):
            if not isinstance(each, ExportableState):
                continue
            name, state = type(each).__name__, each.state()
            if isinstance(kept.get(name), list):
                kept[name].append(state)
            else:
                kept[name] = state

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        save = self._under_way
        assert save
        if self.is_fsdp_enabled:
            # All ranks gather the states, so it is nothing that one of them could write by itself.
            files = [save.folder / "optimizer.pt", save.folder / "scheduler.pt"] if self.args.should_save else []
            save.write(lambda: super(CheckpointingTrainer, self)._save_optimizer_and_scheduler(output_dir), *files)
            return
        if not self.is_deepspeed_enabled:
            if self.args.should_save:
                save.store(snapshot.write_torch, self.optimizer.state_dict(), save.folder / "optimizer.pt")
                save.store(snapshot.write_torch, self.lr_scheduler.state_dict(), save.folder / "scheduler.pt")
            return
        super()._save_optimizer_and_scheduler(output_dir)
        # With the optimizer's states on NVMe, each rank has copied its swap files.
        for folder in save.folder.glob(f"global_step*/offloaded_tensors/rank{my_rank()}"):
            save.seal(*(file for file in sorted(folder.rglob("*")) if file.is_file()))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Under DeepSpeed with whole weights, the stock method clones all of them, on every rank and with the frozen
        ones: into fresh memory, whose pages cost several times the copying."""
        save, engine = self._under_way, self.model_wrapped
        is_whole = save is not None and self.is_deepspeed_enabled and not engine.zero_optimization_partition_weights()
        if save is None or not is_whole or engine.autotp_size() > 1:
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            weights = None
            if not _is_peft_model(self.model):
                weights = save.copy_of(self.model.state_dict()) or self.accelerator.get_state_dict(self.deepspeed)
            self._save(output_dir, state_dict=weights)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Weights and tokenizer, on the rank that writes them; no training_args.bin, which nothing reads back and which
        keeps the Hub token in clear."""
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        save = self._under_way
        if save is None or folder != save.folder:
            self._write_model(folder, state_dict)
            return
        # DeepSpeed's are copies already, or whole weights gathered for this save, but for some buffers.
        own = (*self.model.parameters(), *self.model.buffers())
        live = None if state_dict is None else {tensor.untyped_storage()._cdata for tensor in own}

        def write(tensors: snapshot.NamedTensors, file: Path) -> None:
            save.store(snapshot.write_safetensors, tensors, file, live=live)

        with snapshot.safetensors_through(write, folder):
            save.write(lambda: self._write_model(folder, state_dict))
        save.seal(*(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("rng_state")))

    def _write_model(self, folder: Path, state_dict: dict[str, Any] | None) -> None:
        """Tied weights are saved once. Under ZeRO-1 and 2 accelerate hands out clones (so that torch.save does not
        write whole buckets), in which save_pretrained no longer sees that lm_head and embedding are one."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        if state_dict is not None:
            state_dict = {name: each for name, each in state_dict.items() if tied.get(name) not in state_dict}
        self.model.save_pretrained(folder, state_dict=state_dict, **saved_embeddings(self.model))
        self.save_own_config(folder)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)

    def save_own_config(self, folder: Path) -> None:
        """Beside an adapter, the config of its base model in which the user has set values."""
        if self.saving.own_config and _is_peft_model(self.model):
            config = deepcopy(self.model.get_base_model().config)
            vars(config).pop("quantization_config", None)  # adapters are merged into the whole weights
            config.save_pretrained(folder)

    def finish_saving(self) -> None:
        """Wait until the save under way, if any, is visible, and delete superfluous checkpoints. A collective."""
        save, self._under_way = self._under_way, None
        if save is None:
            return
        began = time.monotonic()
        size: int | None = None
        with self._forgiven_once(save.step):
            size = save.finish(self.saving.facts)
        if size is None:
            return
        self.save_again = False
        if save.short_of_memory and not self._told_of_memory:
            self._told_of_memory = True
            self.saving.notify(notice_of("memory.of_copies"))
        now = time.monotonic()
        self._stall += now - began
        folder = save.run.checkpoint(save.step)
        self.on_checkpoint("visible", folder, self._stall, written_s=now - save.began, bytes=size)
        if my_rank() == 0:
            self._rotate(save)

    def _rotate(self, save: CheckpointSave) -> None:
        # The stock rotation goes by the folders' times (sort_checkpoints, use_mtime), which a copied run folder does
        # not keep, and counts checkpoints that are not whole.
        steps = self._complete_steps(save)
        protected = {save.step, self.state.best_global_step or save.step}
        if self.state.best_model_checkpoint:
            protected.add(int(Path(self.state.best_model_checkpoint).name.rpartition("-")[2]))
        for step in commit.superfluous(steps, keep=self.saving.keep, protected=protected):
            try:
                doomed = commit.hide(save.run, step)
            except OSError:
                # A run does not end because of too many checkpoints.
                logger.exception("checkpoint-%d could not be deleted", step)
                continue
            self._remover.submit(shutil.rmtree, doomed, ignore_errors=True)

    def _complete_steps(self, save: CheckpointSave) -> list[int]:
        if self._complete is None:  # those of earlier attempts are checked once
            self._complete = {step for step, _ in complete_checkpoints(save.run)}
        self._complete.add(save.step)
        return [step for step, _ in save.run.checkpoints() if step in self._complete]

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        """No save may be under way any more."""
        self._remover.submit(int).result()  # one thread: after all that is to be removed
        if my_rank() == 0:
            commit.leave(self.saving.run)
        return super()._finalize_training(*args, **kwargs)


class _AfterEachStep(TrainerCallback):
    """Shows a checkpoint that is on the disk of all ranks, and repeats a save that failed. They agree on the thread
    that trains, as a second thread's collectives could meet those of the training in another order on another rank."""

    def __init__(self, trainer: CheckpointingTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        save = self.trainer._under_way
        if save is not None and all_ready(save.is_sealed):
            self.trainer.finish_saving()
        if self.trainer.save_again:
            control.should_save = True
