"""Where a run begins: at which checkpoint, and with which model and Trainer; and what `dsrun certify` has found."""

import os
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from dsrun.certify.verdict import recorded
from dsrun.demo.models import TASKS
from dsrun.errors import DsrunError
from dsrun.findings.finding import finding_of, text_of
from dsrun.findings.show import shown
from dsrun.models.folder import find
from dsrun.recipe.parsed_value import config_flags
from dsrun.recipe.resolve import given_values
from dsrun.runs.attempts import attempt, earlier_signatures, is_another
from dsrun.runs.manifest import read_manifest
from dsrun.system.files import read_object
from dsrun.system.host import disk_free
from dsrun.train.base import speed
from dsrun.train.base.distributed import all_gather_object, assert_same_on_all_ranks
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.base.refusals import notice_of
from dsrun.train.base.run_records import step_of
from dsrun.train.checkpoint import elastic, plain
from dsrun.train.checkpoint.checkpointing import SavingPolicy
from dsrun.train.checkpoint.layout import CheckpointLayout
from dsrun.train.checkpoint.resume import find_checkpoint
from dsrun.train.checkpoint.verify import checkpoint_facts
from dsrun.train.data.overview import data_facts, data_rows, padding_of
from dsrun.train.export.final import check_room
from dsrun.train.loop.build_trainer import PreparedRun, TrainerBuilder
from dsrun.train.loop.callbacks import build_callbacks
from dsrun.train.loop.trainer import RunTrainer
from dsrun.train.model.load import parameter_count
from dsrun.train.packing.decide import BatchingPlan, keep_grouping
from dsrun.zero.ops import stage_of


def find_start(run: PreparedRun) -> tuple[elastic.AdaptedCheckpoint | None, dict[str, Any]]:
    """The checkpoint to go on from, made fit for this number of ranks and this stage, None to start at step 0; and the
    facts of this run that it was compared with. Before the Trainer's arguments, as it may change DeepSpeed's
    configuration, and before the model is built, which changes the config that the facts are about."""
    plan, notify, beat = run.plan, run.console.notice, run.context.heart.beat
    facts = checkpoint_facts(plan, run.tokenizer, run.data)
    if "train" not in plan.phases:
        return None, facts
    again = earlier_signatures(os.environ)
    checkpoint = find_checkpoint(plan.recipe.spec, run.folder, facts=facts, notify=notify, beat=beat, again=again)
    # It follows from files of the run folder, which each rank has read by itself.
    assert_same_on_all_ranks("batch", plan.batch.sentence("rank"))
    assert_same_on_all_ranks("plugin", facts["plugin"])
    if checkpoint is None:
        return None, facts
    layout = CheckpointLayout.wanted(plan.world.size, plan.deepspeed)
    start = elastic.adapt(
        checkpoint,
        replace(layout, fp16=plan.precision == "fp16", bf16=plan.precision == "bf16"),
        run=run.folder.path,
        notify=notify,
        beat=beat,
        trained=lambda: plain.trainer_order(plan, run.tokenizer),
    )
    return start, facts


def build_trainer(run: PreparedRun, start: elastic.AdaptedCheckpoint | None, facts: dict[str, Any]) -> RunTrainer:
    """The Trainer around the model, with all callbacks; prints the header and records the start. `facts` go into the
    manifests of its checkpoints."""
    # Samples stay grouped as they were, so that the place in the data means the same.
    saved = keep_grouping((read_manifest(start.source) or {"extra": {}})["extra"]) if start else None
    trainer = TrainerBuilder(**vars(run), grouping=saved).build()
    # Each rank has probed the model by itself; with different batches they would wait for each other for ever.
    assert_same_on_all_ranks(
        "batches",
        str((trainer.batching.grouping, trainer.batching.method)),
        fix="install the same packages and kernels on all nodes, or pass --packing off",
    )
    if saved and saved != trainer.batching.grouping:
        run.console.notice(notice_of("resumed.batches", now=trainer.batching.grouping.kind, was=saved.kind))
    spec = run.plan.recipe.spec
    saving = SavingPolicy(
        run=run.folder,
        keep=spec.keep,
        background=spec.async_save,
        own_config=bool(config_flags(spec)),
        trust=spec.trust,
        facts=facts | {"grouping": asdict(trainer.batching.grouping)},
        beat=run.context.heart.beat,
        notify=run.console.notice,
    )
    trainer.keep_checkpoints(saving)
    if start:
        trainer.loss_of_model.restore(start.source)
        run.context.progress.saved = step_of(start.source)
        # Before the other callbacks, which find an ordinary engine then.
        trainer.add_callback(elastic.ElasticResumeCallback(trainer, start, run=run.folder.path))
    _record_start(run, trainer, start)
    build_callbacks(trainer, run.plan, run.folder, run.records, run.console)
    return trainer


def _record_start(run: PreparedRun, trainer: RunTrainer, start: elastic.AdaptedCheckpoint | None) -> None:
    plan, batching = run.plan, trainer.batching
    parameters = parameter_count(trainer.model)
    trainable = parameter_count(trainer.model, trainable=True)
    facts = _facts(run, trainer)
    verdict = certify_facts(plan) if plan.world.is_main else None
    rows = [*_data_rows(run, facts), *_verdict_row(run, verdict)]
    _print_header(run, batching, rows, parameters=parameters, trainable=trainable)
    if "train" in plan.phases:
        check_room(
            disk_free(run.folder.path),
            parameters=parameters,
            trainable=trainable,
            weight_bytes=4 if plan.precision == "fp32" else 2,
            checkpoints=trainer.args.save_strategy != "no",
            where=run.folder.path,
        )
    source = start.source if start else None
    gpus = all_gather_object(torch.cuda.get_device_name()) if plan.world.device == "cuda" else []
    whole = getattr(trainer.model, "whole", None)
    part_of = {"part_of": whole.architecture} if whole else {}
    known = {"parameters": parameters, **part_of, "packing": batching.facts, "data": facts, "gpus": gpus}
    run.records.start(plan, resumed_from=source, certified=verdict, **known)


def _verdict_row(run: PreparedRun, certified: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What `dsrun certify` says of the model, once in a run folder; flags that are missing are named at each start."""
    if not certified:
        return []
    if (missing := certified["missing"]) and not is_another(os.environ):
        codes = ", ".join(dict.fromkeys(missing.values()))
        run.console.notice(shown(finding_of("certified", codes=codes, flags=" ".join(missing))).line)
    before = read_object(run.folder.run_json).get("certified") or {}
    return [] if certified["sentence"] == before.get("sentence") else [("verdict", certified["sentence"])]


def _facts(run: PreparedRun, trainer: RunTrainer) -> dict[str, Any]:
    """Of the data, for run.json; its padding on rank 0 alone, which tells, where it follows from samples' lengths."""
    plan, rows, padding = run.plan, trainer.train_dataset, None
    if "train" not in plan.phases:
        return data_facts(run.data)
    is_padded = hasattr(rows, "__len__") and not trainer.batching.method and not plan.recipe.spec.long_context
    if plan.world.is_main and is_padded:
        padding = padding_of(trainer.get_train_dataloader().batch_sampler, rows, run.data.collator)
    batch, drop_last = plan.batch.global_batch, trainer.args.dataloader_drop_last
    return data_facts(run.data, global_batch=batch, drop_last=drop_last, padding=padding)


def _data_rows(run: PreparedRun, facts: dict[str, Any]) -> list[tuple[str, str]]:
    """What the header says of the data, with the flags that change it."""
    plan, recipe = run.plan, run.plan.recipe
    unit = plan.batch.world_size * (recipe.hf.get("gradient_accumulation_steps") or 1)
    # That of a demo holds for its own global batch alone.
    if recipe.sources.get("micro_batch_size") != plan.title:
        unit *= recipe.spec.micro_batch_size or recipe.hf.get("per_device_train_batch_size") or 1
    fits = (facts["samples"] or 0) // unit * unit
    fewer = f"--global-batch-size to {fits}" if fits and not recipe.spec.global_batch_tokens else None
    wide = ["pad_to_max_length"] if recipe.spec.pad_to_max_length else []
    wide += ["train_sampling_strategy"] if recipe.given("train_sampling_strategy") else []
    wide += ["packing"] if recipe.spec.packing == "off" else []
    return data_rows(run.data, facts, fewer=fewer, even=f"leave out {recipe.where(wide[0])}" if wide else None)


def _print_header(
    run: PreparedRun, batching: BatchingPlan, data: list[tuple[str, str]], *, parameters: int, trainable: int
) -> None:
    """What is about to be trained, on what, and how; after a restart only what it may have changed."""
    plan = run.plan
    origin = ", from scratch" if plan.recipe.spec.from_scratch or not plan.recipe.spec.model else ""
    how = f"{parameters:,} parameters{', from the script' if plan.given.model else origin}"
    if trainable != parameters:
        how += f", {trainable:,} trained ({100 * trainable / parameters:.2g}%)"
    batch, faster = [], []
    if "train" in plan.phases:
        batch = [("batch", plan.batch.sentence(plan.world.rank_name))]
        batch += [("packing", each) for each in batching.sentences(plan.world.ranks_named)]
        faster = [("speed", each) for each in speed.lines(speed.choices(speed.facts_of(plan)))]
    rows = [
        ("model", f"{plan.title} ({plan.config.model_type}, {how})"),
        ("task", plan.objective),
        ("parallel", plan.parallel),
        *batch,
        ("precision", plan.precision),
        *faster,
        *data,
        *([("plugin", plan.plugin.identity)] if plan.plugin else []),
        ("output", str(run.folder.path)),
    ]
    if attempt(os.environ)["attempt"]:
        # The first one stands above on the same terminal; a remedy may have changed these.
        rows = [row for row in rows if row[0] in ("parallel", "batch", "packing")]
    run.console.print()
    run.console.rows(rows)


def certify_facts(plan: TrainingPlan) -> dict[str, Any] | None:
    """For run.json: the state of the verdict, its sentence, the codes of what failed, and flags that are missing, with
    what they avoid. None for a demo, and for a model that is not that of the config.json beside it."""
    spec = plan.recipe.spec
    others = plan.given.config is not None or spec.config_name or config_flags(spec)
    if not spec.model or others or plan.title in TASKS:
        return None
    try:
        found = find(spec.model, weights=False)
    except DsrunError:
        return None
    state, verdict = recorded(found.config, "dpo" if spec.task == "dpo" else plan.task)
    if verdict and verdict.about["folder"] != str(found.folder.resolve()):
        verdict = verdict.of_architecture
    about: dict[str, Any] = verdict.about if verdict else {"time": "", "stages": [], "versions": {}}
    values = {**about["versions"], "model": shlex.quote(spec.model), "date": about["time"][:10]}
    values |= {"sentence": verdict.sentence, "stages": ", ".join(map(str, about["stages"]))} if verdict else {}
    failed = verdict.failed if verdict and state == "found" else []
    tried = {stage := stage_of(plan.deepspeed), stage + (stage == 1)} & {*about["stages"]}  # ZeRO-2 has what 1 has
    narrow = state == "found" and (not tried or (spec.lora and not about["lora"]))
    return {
        "state": state,
        "sentence": text_of(f"certified.{'narrow' if narrow and not failed else state}", **values),
        "failed": [row["check"] for row in failed],
        "missing": {flag: row["check"] for row in failed for flag in row["avoid"] if not _has(plan, flag)},
    }


def _has(plan: TrainingPlan, flag: str) -> bool:
    """Whether a run trains by a flag, such as "--packing off"; a lower ZeRO stage than that avoids the same."""
    chosen = {name: plan.precision == name for name in ("bf16", "fp16")}
    return all(
        stage_of(plan.deepspeed) <= int(each.value)
        if name == "zero"
        else chosen.get(name, plan.recipe.value(name) or False) == each.value  # None is off
        for name, each in given_values(flag.split(), Path.cwd(), []).items()
    )
