"""The Trainer, with dsrun's batches, loss, evaluation and checkpoints in place of the stock ones."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import Seq2SeqTrainer

from dsrun.train import engine
from dsrun.train.batches import (
    BatchLoader,
    GlobalBatchSampler,
    Split,
    StreamOfBatches,
    WithFiller,
    seed_worker,
)
from dsrun.train.evaluation import Evaluation, Evaluator
from dsrun.train.loss import loss_is_native, shifts_labels, summed_cross_entropy, target_tokens
from dsrun.train.stopping import Stopping

# A loader worker silent for this long is stuck, on a dead file system for example.
LOADER_TIMEOUT_SECONDS = 600


class RunTrainer(Seq2SeqTrainer):
    """A Seq2SeqTrainer for both tasks whose loss, gradients and data order do not depend on the cluster's shape."""

    # compute_loss divides by the target tokens of the whole global batch, accumulation steps included.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        *,
        split: Split,
        ds_config: dict[str, Any] | None,
        on_checkpoint: Callable[[str, Path, float], None],
        eval_progress: Callable[[int, int], None],
        stopping: Stopping,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stopping = stopping
        self.interrupted = False
        self._stop_votes = torch.zeros((), dtype=torch.int64)
        self.split = split
        self.ds_config = ds_config
        self.on_checkpoint = on_checkpoint
        self.eval_progress = eval_progress
        self.is_zero3 = engine.stage_of(ds_config) == 3
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        self.loss_is_native = loss_is_native(base) and not self.args.label_smoothing_factor
        self.shifted = shifts_labels(base)
        self._tokens_seen = torch.zeros((), dtype=torch.int64, device=self.args.device)
        self.seconds_not_training = 0.0
        self.already_finished = False
        self.last_evaluation: Evaluation | None = None
        self.last_metrics: tuple[int, dict[str, float]] | None = None

    # data

    def get_train_dataloader(self) -> BatchLoader:
        rows = self.train_dataset
        workers = self.args.dataloader_num_workers
        options: dict[str, Any] = {
            "collate_fn": self.data_collator,
            "pin_memory": self.args.dataloader_pin_memory and self.args.device.type == "cuda",
            # The loader draws a seed from here, not from the generator that dropout uses: resuming then finds the
            # same dropout masks whatever the loader did before.
            "generator": torch.Generator().manual_seed(self.args.data_seed or self.args.seed),
            "worker_init_fn": seed_worker,
        }
        if not hasattr(rows, "__len__"):
            # Each further worker would read the whole stream again.
            return BatchLoader(
                StreamOfBatches(rows, self.split), batch_size=None, num_workers=min(workers, 1), **options
            )
        sampler = GlobalBatchSampler(
            len(rows),
            self.split,
            seed=self.args.data_seed or self.args.seed,
            drop_last=self.args.dataloader_drop_last,
            shuffle=self.args.train_sampling_strategy != "sequential",
            lengths=self._lengths(rows),
        )
        return BatchLoader(
            WithFiller(rows),
            batch_sampler=sampler,
            num_workers=workers,
            persistent_workers=self.args.dataloader_persistent_workers and workers > 0,
            prefetch_factor=self.args.dataloader_prefetch_factor if workers else None,
            timeout=LOADER_TIMEOUT_SECONDS if workers else 0,
            **options,
        )

    def _lengths(self, rows: Any) -> list[int] | None:
        if self.args.train_sampling_strategy != "group_by_length":
            return None
        return [len(ids) for ids in rows["input_ids"]] if hasattr(rows, "column_names") else None

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor]:
        """The micro batches of one optimizer step, and the target tokens in them on all ranks together."""
        batches = list(itertools.islice(epoch_iterator, num_batches))
        targets = sum(target_tokens(b["labels"], shifted=self.shifted) for b in batches)
        read = sum(b["attention_mask"].sum() for b in batches)
        if not self.shifted:
            read = read + targets
        counts = torch.stack([torch.as_tensor(n) for n in (targets, read, int(self.stopping.asked))]).to(
            device
        )
        if self.split.world_size > 1:
            dist.all_reduce(counts)
        self._tokens_seen += counts[1]
        self._stop_votes = counts[2]
        return batches, counts[0].clamp(min=1)

    @property
    def ranks_want_to_stop(self) -> bool:
        """Whether any rank had been told to stop when this step began; the same on all ranks."""
        # Reading it waits for the GPU to begin the step, so it is only read where somebody may ask.
        return self.stopping.is_on and bool(self._stop_votes)

    @property
    def tokens_seen(self) -> int:
        """Tokens read by all ranks since the start, padding left out. Reading it waits for the GPU."""
        return int(self._tokens_seen)

    def _run_epoch(self, **kwargs: Any) -> None:
        """One epoch; none where the checkpoint that was resumed is a finished run's: it has seen all steps, or has run
        out of patience. The stock loop looks at both only after a step, so it would train one more."""
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.already_finished = self.state.global_step == self._initial_global_step
            self.control.should_training_stop = True
            return
        super()._run_epoch(**kwargs)

    # loss

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> Any:
        """This rank's share of the global batch's mean loss, times the world size, as ranks' gradients are averaged."""
        if self.loss_is_native:
            outputs = model(**inputs, num_items_in_batch=num_items_in_batch)
            loss = outputs["loss"]
        else:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            smoothing = self.args.label_smoothing_factor
            total = summed_cross_entropy(outputs["logits"], labels, shifted=self.shifted, smoothing=smoothing)
            loss = total / num_items_in_batch
        loss = loss * self.split.world_size
        return (loss, outputs) if return_outputs else loss

    # evaluation

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Exact loss and, for seq2seq, scores of generated text over `eval_dataset`, by default the validation data."""
        began = time.monotonic()
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        evaluator = Evaluator(
            self, self.processing_class, rank=self.split.rank, world_size=self.split.world_size
        )
        result = evaluator.run(
            rows, generate=self.args.predict_with_generate, with_loss=True, progress=self.eval_progress
        )
        self.last_evaluation = result
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in result.metrics.items()}
        self.log(metrics)
        self.last_metrics = (self.state.global_step, metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.seconds_not_training += time.monotonic() - began
        return metrics

    def prepare_for_evaluation(self) -> None:
        """Without training before it, evaluation under ZeRO-3 needs an engine to gather parameters."""
        if self.is_zero3 and self.model_wrapped is self.model:
            from transformers.integrations.deepspeed import deepspeed_init

            deepspeed_init(self, num_training_steps=0, inference=True)
            # Accelerate's prepare_model leaves a ZeRO-3 model as it is; only prepare builds the engine that gathers.
            self.model_wrapped = self.accelerator.prepare(self.model)
        elif self.model_wrapped is self.model:
            self.model.to(self.args.device)

    # checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        began = time.monotonic()
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if self.split.rank == 0 and folder.exists():
            # Left by an attempt that died while saving; mixed with new files it could pass for complete.
            shutil.rmtree(folder)
        self._wait_for_all()
        self.on_checkpoint("begin", folder, 0.0)
        super()._save_checkpoint(model, trial)
        self._wait_for_all()
        self.on_checkpoint("end", folder, time.monotonic() - began)
        self._wait_for_all()
        self.seconds_not_training += time.monotonic() - began

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Save tied weights once. Under ZeRO-1 and 2 accelerate hands out clones (so that torch.save does not write
        whole buckets), in which save_pretrained no longer sees that lm_head and embedding are one."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        if state_dict is not None:
            state_dict = {
                name: weight for name, weight in state_dict.items() if tied.get(name) not in state_dict
            }
        super()._save(output_dir, state_dict=state_dict)

    def _wait_for_all(self) -> None:
        if self.split.world_size > 1:
            dist.barrier()
