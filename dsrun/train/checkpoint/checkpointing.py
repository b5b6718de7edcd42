"""The Trainer's checkpoints: complete or invisible, rotated, and written on while training goes on if asked to."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from transformers import Seq2SeqTrainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from dsrun.runs import commit
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import STATE_FILE, complete_checkpoints
from dsrun.train.checkpoint.save import Save, SaveFailed
from dsrun.train.distributed import all_ready, my_rank, ranks
from dsrun.train.model.adapters import saved_embeddings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Saving:
    """How checkpoints are kept: where, how many, with which facts in their manifests, and whether training goes on in
    the meantime (`background`). `trust` loads them whoever wrote them; `beat` is called now and then, `notify` with a
    line for the user."""

    run: RunFolder
    keep: int = 3
    background: bool = False
    trust: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    beat: Callable[[], None] = lambda: None
    notify: Callable[[str], None] = logger.warning


class Checkpointing(Seq2SeqTrainer):
    """A Trainer whose checkpoints appear by a rename, once those of all ranks are written. The class that inherits has
    `on_checkpoint` (phase, folder, seconds, **details) and `seconds_not_training`. `save_again`: the last save
    failed, and is tried once more after the next step."""

    saving: Saving
    interrupted: bool
    save_again = False
    _under_way: Save | None = None
    _stall = 0.0
    _complete: set[int] | None = None

    def keep_checkpoints(self, saving: Saving) -> None:
        self.saving = saving
        self._remover = ThreadPoolExecutor(1, thread_name_prefix="remove")
        self.add_callback(_AfterEachStep(self))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        began = time.monotonic()
        self.finish_saving()
        run, step = self.saving.run, self.state.global_step
        is_last = self.interrupted or step >= self.state.max_steps
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
            self._under_way = save = Save(run, step, beat=self.saving.beat)
            try:
                self._write(save)
            except OSError as error:
                # From a folder or a copied swap file on NVMe, which DeepSpeed makes by itself. The other ranks
                # wait in its next barrier, so this one can only end, and must clear up.
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

    def _write(self, save: Save) -> None:
        """As the stock method, whose collectives and files these are, but for where the files go."""
        self.store_flos()
        self._record_best(save.step)
        if self.is_deepspeed_enabled:
            self._write_through(self.model_wrapped)
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
        kept = self.state.stateful_callbacks
        for each in (*self.callback_handler.callbacks, self.control):
            if not isinstance(each, ExportableState):
                continue
            name, state = type(each).__name__, each.state()
            if isinstance(kept.get(name), list):
                kept[name].append(state)
            else:
                kept[name] = state

    def _record_best(self, step: int) -> None:
        """The best checkpoint under the path it is going to have, also where the run folder was moved since."""
        best = self.state.best_global_step
        if best:
            folder = self.saving.run.checkpoint(best)
            if best == step or folder.is_dir():
                self.state.best_model_checkpoint = str(folder)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        save = self._under_way
        assert save
        if not self.is_deepspeed_enabled:
            folder = Path(output_dir)
            files = [folder / "optimizer.pt", folder / "scheduler.pt"] if self.args.should_save else []
            save.write(lambda: super(Checkpointing, self)._save_optimizer_and_scheduler(output_dir), *files)
            return
        super()._save_optimizer_and_scheduler(output_dir)
        # With the optimizer's states on NVMe, each rank has copied its swap files.
        for folder in save.folder.glob(f"global_step*/offloaded_tensors/rank{my_rank()}"):
            save.seal(*(file for file in sorted(folder.rglob("*")) if file.is_file()))

    def _write_through(self, engine: Any) -> None:
        """Have a DeepSpeed engine write through the save under way, unless its JSON chose another checkpoint engine.

        Between two files DeepSpeed's save_checkpoint meets in barriers: an exception on one rank would leave the others
        in the next one until the process group times out.
        """
        files = engine.checkpoint_engine
        if type(files).__name__ != "TorchCheckpointEngine" or "save" in vars(files):
            return
        stock, checkpoint, scripts = files.save, engine.save_checkpoint, engine._copy_recovery_script

        def ours(path: str) -> Save | None:
            save = self._under_way
            return save if save and save.folder in (Path(path), *Path(path).parents) else None

        def write(state_dict: Any, path: str) -> None:
            if save := ours(path):
                save.write(lambda: stock(state_dict, path), Path(path))
            else:
                stock(state_dict, path)

        def write_scripts(folder: str) -> None:
            if save := ours(folder):
                save.write(lambda: scripts(folder))
            else:
                scripts(folder)

        @wraps(checkpoint)  # its caller looks at the parameters
        def write_checkpoint(save_dir: str, **options: Any) -> None:
            save = ours(save_dir)
            checkpoint(save_dir, **options, save_latest=save is None)
            if save and my_rank() == 0:
                latest = Path(save_dir, "latest")
                save.write(lambda: latest.write_text(f"global_step{engine.global_steps}"), latest)

        files.save, engine.save_checkpoint, engine._copy_recovery_script = write, write_checkpoint, write_scripts

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
        save.write(lambda: self._write_model(folder, state_dict))
        save.seal(*(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("rng_state")))

    def _write_model(self, folder: Path, state_dict: dict[str, Any] | None) -> None:
        """Tied weights are saved once. Under ZeRO-1 and 2 accelerate hands out clones (so that torch.save does not
        write whole buckets), in which save_pretrained no longer sees that lm_head and embedding are one."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        if state_dict is not None:
            state_dict = {name: each for name, each in state_dict.items() if tied.get(name) not in state_dict}
        self.model.save_pretrained(folder, state_dict=state_dict, **saved_embeddings(self.model))
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)

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
        now = time.monotonic()
        self._stall += now - began
        folder = save.run.checkpoint(save.step)
        self.on_checkpoint("visible", folder, self._stall, written_s=now - save.began, bytes=size)
        if my_rank() == 0:
            self._rotate(save)

    def _rotate(self, save: Save) -> None:
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

    def _complete_steps(self, save: Save) -> list[int]:
        """The steps of the complete checkpoints. Those of earlier attempts are checked once."""
        if self._complete is None:
            self._complete = {step for step, _ in complete_checkpoints(save.run)}
        self._complete.add(save.step)
        return [step for step, _ in save.run.checkpoints() if step in self._complete]

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        """Before the best checkpoint is loaded, the last one has to be there."""
        self.finish_saving()
        if self.save_again:
            self._save_checkpoint(None, None)
        self._remover.shutdown(wait=True)
        if my_rank() == 0:
            commit.leave(self.saving.run)
        return super()._finalize_training(*args, **kwargs)


class _AfterEachStep(TrainerCallback):
    """Shows a checkpoint that is on the disk of all ranks, and repeats a save that failed. They agree on the thread
    that trains, as a second thread's collectives could meet those of the training in another order on another rank."""

    def __init__(self, trainer: Checkpointing) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        save = self.trainer._under_way
        if save is not None and all_ready(save.is_sealed):
            self.trainer.finish_saving()
        if self.trainer.save_again:
            control.should_save = True
