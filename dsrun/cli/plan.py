"""`dsrun plan`: what fits where, from the model's config alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from dsrun.cli.options import Command, format_option
from dsrun.cli.output import print_detail, print_json, print_line, print_note, print_table
from dsrun.demo.models import TASKS
from dsrun.errors import EXIT_FINDINGS, UsageError
from dsrun.recipe.deepspeed_file import as_object, read_text
from dsrun.recipe.preflight.model_folder import has_weights
from dsrun.slurm.cluster.plan_gpus import with_cluster
from dsrun.system.gpus import visible_gpus
from dsrun.system.variables import cache_root
from dsrun.zero.generate.presets import GIB
from dsrun.zero.generate.spec import OPTIMIZER_ONLY
from dsrun.zero.lint.check import check
from dsrun.zero.memory import report
from dsrun.zero.memory.calibrate import calibrate
from dsrun.zero.memory.calibration import remembered
from dsrun.zero.memory.model.configs import find
from dsrun.zero.memory.model.count import Counted, check_length, count
from dsrun.zero.memory.optimizers import DEFAULT
from dsrun.zero.memory.own_config import with_deepspeed
from dsrun.zero.memory.plan import Plan, plan
from dsrun.zero.memory.report import CommandOptions, as_json
from dsrun.zero.memory.request import USUAL_LENGTH, PlanRequest, cluster, default_precision
from dsrun.zero.memory.states import FP32
from dsrun.zero.memory.strategy import Candidate


@click.command(cls=Command, name="plan")
@click.option("--model", required=True, metavar="NAME|DIR", help="model folder, config.json, or cached Hub name")
@click.option("--gpus", metavar="NAME[:N]", help="GPUs of one node, such as a100-80:8  [default: those here]")
@click.option("--cluster", is_flag=True, help="take the GPUs from this SLURM cluster's nodes")
@click.option("--partition", metavar="NAME", help="take the GPUs from this partition's nodes")
@click.option("--nodes", type=int, default=1, show_default=True, help="nodes with these GPUs")
@click.option("--gpu-memory", type=float, metavar="GIB", help="GiB of one GPU, if its model is unknown")
@click.option("--host-memory", type=float, metavar="GIB", help="GiB of host memory per node  [default: 256 a GPU]")
@click.option("--max-length", type=int, metavar="N", help="tokens per sample; of a seq2seq model, of both sides")
@click.option("--max-source-length", type=int, metavar="N", help="source tokens per sample (seq2seq)")
@click.option("--max-target-length", type=int, metavar="N", help="target tokens per sample (seq2seq)")
@click.option("--global-batch-size", type=int, metavar="N", help="samples per optimizer step over all GPUs")
@click.option("--micro-batch-size", type=int, metavar="N", help="samples per GPU and pass  [default: all that fit]")
@click.option("--zero", type=click.Choice(["0", "1", "2", "3"]), help="this ZeRO stage only  [default: each]")
@click.option(
    "--offload", type=click.Choice(["none", "cpu", "nvme", OPTIMIZER_ONLY]),
    help="this place of optimizer states (and ZeRO-3 parameters) only  [default: each]",
)  # fmt: skip
@click.option("--deepspeed", metavar="FILE", help="your own DeepSpeed JSON, instead of those three and --precision")
@click.option("--optim", metavar="NAME", help=f"optimizer, as the Trainer calls it  [default: {DEFAULT}]")
@click.option(
    "--weights-dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True,
    help="dtype the weights are loaded in, which plain DDP (ZeRO 0) trains",
)  # fmt: skip
@click.option("--use-liger-kernel", is_flag=True, help="compute the loss without all logits at a time")
@click.option("--lora", type=int, metavar="RANK", help="train LoRA adapters of this rank only")
@click.option(
    "--preset", type=click.Choice(["conservative", "balanced", "aggressive"]), default="balanced",
    show_default=True, help="fill at most 50%, 65% or 90% of each GPU",
)  # fmt: skip
@click.option(
    "--precision", type=click.Choice(["auto", "bf16", "fp16", "fp32"]), default="auto", show_default=True,
    help="number format of training",
)  # fmt: skip
@click.option(
    "--gradient-checkpointing", type=click.Choice(["on", "off", "auto"]), default="auto", show_default=True,
    help="keep only each layer's input and compute the rest again",
)  # fmt: skip
@click.option(
    "--attention", type=click.Choice(["fused", "eager"]), default="fused", show_default=True,
    help="fused: sdpa or flash attention; eager keeps all scores",
)  # fmt: skip
@click.option(
    "--sequence-parallel", type=click.IntRange(min=1), default=1, show_default=True, metavar="K",
    help="GPUs that share a sample, as with `dsrun train --long-context`",
)  # fmt: skip
@click.option("--from-scratch", is_flag=True, help="initialise the model instead of loading it")
@click.option("--train-file", metavar="FILE", help="training data, for the commands that follow")
@click.option("--dataset", metavar="NAME", help="dataset, for the commands that follow")
@click.option("--nvme-path", default="/local_nvme", show_default=True, metavar="DIR", help="local NVMe folder")
@click.option(
    "--count", "counting", type=click.Choice(["auto", "meta", "shapes"]), default="auto", show_default=True,
    help="count parameters with transformers on the meta device, or from the config's shapes",
)  # fmt: skip
@format_option
@click.option("--calibrate", is_flag=True, help="train two steps at the chosen point here and compare")
def command(**given: Any) -> int:
    """What fits where: memory and speed of every ZeRO strategy, from the model's config alone."""
    if given["cluster"] or given["partition"] is not None:
        given = with_cluster(given, notify=print_note)
    found = find(_model_folder(given["model"]))
    counted = count(
        found, meta={"auto": None, "meta": True, "shapes": False}[given["counting"]], from_scratch=given["from_scratch"]
    )
    if given["max_source_length"] is None:
        # Speech models pad each source to it.
        given["max_source_length"] = found.config.get("max_source_positions")
    request = _request(counted, given)
    _note_unused_lengths(counted.architecture.seq2seq, given)
    options = replace(_command_options(given), trained=counted.trained)
    if request.sequence_parallel > 1 and (given["deepspeed"] or given["calibrate"] or counted.architecture.seq2seq):
        raise UsageError(
            "--sequence-parallel is for causal LM, without --deepspeed and --calibrate", fix="leave it out"
        )
    if given["deepspeed"]:
        request = _with_deepspeed(request, given)
    request = replace(request, factor=remembered(found.config, request))
    made = plan(request)
    for finding in counted.findings:
        print_note(f"{finding.message}{f' ({finding.fix})' if finding.fix else ''}")
    if request.cluster.note:
        print_note(request.cluster.note)
    if given["form"] == "json":
        print_json(as_json(made, counted, options))
    else:
        _print(made, counted, options)
    if given["calibrate"] and made.choice is not None:
        print_detail(calibrate(made, found, given["nvme_path"], notify=print_note).sentence)
        return 0
    return 0 if made.choice is not None else EXIT_FINDINGS


def _model_folder(name: str) -> str:
    """A demo's folder, made where `dsrun train` makes it too; everything else is a path or a Hub name."""
    if name not in TASKS:
        return name
    from dsrun.demo.build import materialise

    return str(materialise(name, cache_root() / "demo" / name).model)


def _request(counted: Counted, given: dict[str, Any]) -> PlanRequest:
    cluster = _cluster(given)
    model = counted.architecture
    both = given["max_length"]
    usual = min(USUAL_LENGTH, model.positions or USUAL_LENGTH)
    target = given["max_target_length"] if model.seq2seq else None
    request = replace(
        PlanRequest(model=model, cluster=cluster),
        length=_first(target, both, usual),
        source_length=_first(given["max_source_length"], both, usual),
        global_batch=given["global_batch_size"],
        lora=given["lora"],
        preset=given["preset"],
        precision=default_precision(given["precision"], model, cluster),
        checkpointing=given["gradient_checkpointing"],
        attention=given["attention"],
        host_memory=given["host_memory"],
        stage=int(given["zero"]) if given["zero"] else None,
        offload=given["offload"],
        micro_batch=given["micro_batch_size"],
        optimizer=given["optim"] or DEFAULT,
        weights=FP32 if given["weights_dtype"] == "float32" else 2,
        sequence_parallel=given["sequence_parallel"],
        chunked_loss=given["use_liger_kernel"] and not model.seq2seq,
    )
    check_length(model, "--max-length" if target is None else "--max-target-length", request.length)
    if model.seq2seq:
        flag = "--max-length" if given["max_source_length"] is None else "--max-source-length"
        check_length(model, flag, request.source_length)
    return request


def _with_deepspeed(request: PlanRequest, given: dict[str, Any]) -> PlanRequest:
    """The request as the JSON has it, once the linter finds no error in that."""
    file = given["deepspeed"]
    text = read_text(Path(file).expanduser(), file)
    for finding in check(text, file=file, world_size=request.cluster.world):
        if finding.level == "error":
            raise UsageError(f"{finding.where}: {finding.message}", fix=finding.fix)
    flags = {f"--{name.replace('_', '-')}": given[name] for name in ("offload", "micro_batch_size", "optim")}
    flags |= {"--zero": request.stage, "--global-batch-size": request.global_batch}
    flags["--precision"] = None if given["precision"] == "auto" else given["precision"]
    return with_deepspeed(request, as_object(text, file), file, given=flags)


def _note_unused_lengths(seq2seq: bool, given: dict[str, Any]) -> None:
    sides = ("max_source_length", "max_target_length")
    unused = [f"--{name.replace('_', '-')}" for name in sides if given[name] is not None and not seq2seq]
    if unused:
        print_note(f"a causal language model has no {' or '.join(unused)}: only --max-length counts")


def _first(*values: int | None) -> int:
    """The first that was given; 0 counts as given, and is rejected later."""
    return next(value for value in values if value is not None)


def _cluster(given: dict[str, Any]) -> Any:
    gpus = given["gpus"]
    if gpus is None:
        here = visible_gpus()
        if not here:
            raise UsageError("this machine has no GPU to plan for", fix="name GPUs: --gpus a100-80:8")
        sizes = [each.memory_total / GIB for each in here if each.memory_total is not None]
        memory = given["gpu_memory"] or (min(sizes) if sizes else None)
        return cluster(f"{here[0].name}:{len(here)}", nodes=given["nodes"], memory=memory)
    return cluster(gpus, nodes=given["nodes"], memory=given["gpu_memory"])


def _command_options(given: dict[str, Any]) -> CommandOptions:
    data = tuple(
        arg for name in ("train_file", "dataset") if given[name] for arg in (f"--{name.replace('_', '-')}", given[name])
    )
    folder = Path(given["model"]).expanduser()
    # Without weights, the commands that follow must train from scratch.
    bare = folder.is_dir() and not has_weights(folder)
    return CommandOptions(
        model=given["model"], data=data, nvme_path=given["nvme_path"], from_scratch=given["from_scratch"] or bare,
        deepspeed=given["deepspeed"],
    )  # fmt: skip


def _print_parts(row: Candidate) -> None:
    parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in report.details(row))
    print_line(f"  GiB per GPU: {parts}")


def _print(made: Plan, counted: Counted, options: CommandOptions) -> None:
    for line in report.header(made, counted, options):
        print_line(line)
    print_line()
    print_table(report.table(made))
    print_line()
    if made.choice is None:
        print_line(
            "nothing fits. What would fit:"
            if made.remedies
            else "nothing fits, and neither more or larger GPUs, shorter samples, host memory nor LoRA would help"
        )
        for remedy in made.remedies:
            print_line(f"  {remedy}")
        if made.request.stage is None and made.request.micro_batch is None:
            return
        least = min(made.rows, key=lambda row: row.gpu.total)
        print_line(f"{least.strategy} would take with micro batch {made.request.micro_batch or 1}:")
        _print_parts(least)
        return
    print_line(f"choice: {made.why}")
    _print_parts(made.choice)
    if sums := report.exact_sums(made.request, made.choice):
        print_line(f"  {sums}")
    disk = f"  one checkpoint: {made.choice.checkpoint / GIB:.1f} GiB on disk"
    print_line(disk + (f"; NVMe: {made.choice.nvme / GIB:.0f} GiB per node" if made.choice.nvme else ""))
    print_line()
    for line in report.lines(made.request, made.choice, options):
        print_line(line)
    if options.trained and not options.data:
        print_line("# your data: --train-file FILE or --dataset NAME; without, the built-in demo data is used")
