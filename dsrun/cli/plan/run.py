"""What `dsrun plan` does: it reads the model's config, counts, plans and prints."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsrun.cli.output import print_advice, print_commands, print_json, print_line, print_table, refusal
from dsrun.demo.models import TASKS
from dsrun.errors import EXIT_FINDINGS, UsageError
from dsrun.machine.gpus import visible_gpus
from dsrun.models.folder import FoundModel, find, has_weights
from dsrun.system.terminal.display import size_text
from dsrun.system.variables import cache_root
from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory import plan_text
from dsrun.zero.memory.calibration import remembered
from dsrun.zero.memory.model.architecture import ModelShapes
from dsrun.zero.memory.model.count import CountedModel, check_length, count
from dsrun.zero.memory.plan import MemoryPlan, plan
from dsrun.zero.memory.plan_request import USUAL_LENGTH, GpuCluster, PlanRequest, cluster, default_precision
from dsrun.zero.memory.plan_text import CommandOptions, as_json, command_lines
from dsrun.zero.memory.rank.activations import LIGER
from dsrun.zero.memory.rank.optimizers import usual_optimizer
from dsrun.zero.memory.rank.states import FP32
from dsrun.zero.memory.strategy import PlanCandidate

ANY_GPU = "a100-80"
"""For what does not depend on the GPUs."""
NEED_GPUS = ("deepspeed", "calibrate", "gpu_memory", "global_batch_size")


def run(**given: Any) -> int:
    """Print the plan for what was given; the callback of `dsrun plan`."""
    if given["quote"] or given["measure"]:
        from dsrun.cli.plan.quote import print_quote  # what a run tells, not a model

        return print_quote(given)
    if given["cluster"] or given["partition"] is not None:
        from dsrun.slurm.cluster.plan_gpus import with_cluster

        given = with_cluster(given, notify=_note)
    gpus = _cluster(given)
    if given["model"] is None:
        return _models_that_fit(given, gpus)
    folder = _model_folder(given["model"], given["hub"])
    found = find(folder)
    counted = count(
        found, meta={"auto": None, "meta": True, "shapes": False}[given["counting"]], from_scratch=given["from_scratch"]
    )
    if given["max_source_length"] is None:
        # Speech models pad each source to it.
        given["max_source_length"] = found.config.get("max_source_positions")
    request = _request(counted.architecture, given, gpus or cluster(ANY_GPU))
    if gpus is None:
        print_advice(counted.findings)
        if given["explain"]:
            _note("--explain is for GPUs that --gpus names")
        return int(_questions().print_machines(request, given["model"], given["form"]))
    options = replace(_command_options(given), trained=counted.trained)
    if given["hub"] == "modelscope":
        options = replace(options, hub=given["hub"], config=folder)
    if request.sequence_parallel > 1 and (given["deepspeed"] or given["calibrate"] or counted.architecture.seq2seq):
        raise refusal("plan.sequence_parallel")
    if given["deepspeed"]:
        request = _with_deepspeed_file(request, given)
    factor = remembered(found.config, request) if request.trainer == "dsrun" else 1.0
    made = plan(replace(request, factor=factor))
    _answer(made, counted, options, given)
    if given["calibrate"] and made.choice is not None:
        _calibrate(made, found, given["nvme_path"])
    return 0 if made.choice is not None else EXIT_FINDINGS


def _answer(made: MemoryPlan, counted: CountedModel, options: CommandOptions, given: dict[str, Any]) -> None:
    longest = _questions().longest_rows(made.request)
    print_advice(counted.findings)
    if made.request.cluster.note:
        _note(made.request.cluster.note)
    if given["form"] == "json":
        explained = {"explain": _questions().explained(made)} if given["explain"] else {}
        print_json(as_json(made, counted, options) | {"longest": longest} | explained)
    else:
        _print(made, counted, options, longest, given)


def _calibrate(made: MemoryPlan, found: FoundModel, nvme_path: str) -> None:
    from dsrun.system.terminal.stderr import print_detail
    from dsrun.zero.memory.calibrate import calibrate  # which trains

    print_detail(calibrate(made, found, nvme_path, notify=_note).sentence)


def _note(text: str) -> None:
    from dsrun.system.terminal.stderr import print_note  # few plans need one

    print_note(text)


def _model_folder(name: str, hub: str) -> str:
    """A demo's folder, made where `dsrun train` makes it too, and that of a model of ModelScope, whose config is
    downloaded; everything else is a path or a Hub name."""
    if hub == "modelscope" and name not in TASKS:
        from dsrun.hub.modelscope import fetch
        from dsrun.hub.modelscope_cache import local_name
        from dsrun.recipe.preflight.files import check_owners
        from dsrun.recipe.recipe_spec import TrainSpec

        spec = TrainSpec(model=name, hub=hub, from_scratch=True)
        check_owners(spec)
        fetch(spec, notify=_note)
        return local_name(name, "model", spec, os.environ)
    if name not in TASKS:
        return name
    from dsrun.demo.build_demo import materialise

    return str(materialise(name, cache_root() / "demo" / name).model)


def _questions() -> Any:
    from dsrun.cli.plan import open_questions  # more modules, for what most plans do not ask

    return open_questions


def _models_that_fit(given: dict[str, Any], gpus: GpuCluster | None) -> int:
    """`dsrun plan` without --model."""
    from dsrun.zero.memory.smallest import models

    if gpus is None or given["deepspeed"] or given["calibrate"] or given["teacher"]:
        raise refusal("plan.model")
    request = _request(next(iter(models().values())), given, gpus)
    return int(_questions().print_models(request, given["form"]))


def _request(model: ModelShapes, given: dict[str, Any], cluster: GpuCluster) -> PlanRequest:
    sides = ("max_source_length", "max_target_length")
    unused = [f"--{name.replace('_', '-')}" for name in sides if given[name] is not None]
    if unused and not model.seq2seq:
        _note(f"a causal language model has no {' or '.join(unused)}: only --max-length counts")
    both = given["max_length"]
    usual = min(USUAL_LENGTH, model.positions or USUAL_LENGTH)
    target = given["max_target_length"] if model.seq2seq else None
    request = replace(
        PlanRequest(model=model, cluster=cluster),
        beside=_beside(given, model),
        length=_first(target, both, usual),
        source_length=_first(given["max_source_length"], both, usual),
        global_batch=given["global_batch_size"],
        bits=int(given["quantization"].removesuffix("bit")) if given["quantization"] else None,
        **{name: given[name] for name in ("lora", "preset", "attention", "packed", "host_memory", "offload")},
        precision=default_precision(given["precision"], model, cluster),
        checkpointing=given["gradient_checkpointing"],
        stage=int(given["zero"]) if given["zero"] else None,
        micro_batch=given["micro_batch_size"],
        optimizer=given["optim"] or usual_optimizer(given["trainer"]),
        weights=FP32 if given["weights_dtype"] == "float32" else 2,
        sequence_parallel=given["sequence_parallel"],
        trainer=given["trainer"], rows=2 if given["task"] == "dpo" else 1,
        liger=LIGER if given["use_liger_kernel"] and not model.seq2seq else frozenset(),
    )  # fmt: skip
    check_length(model, "--max-length" if target is None else "--max-target-length", request.length)
    if model.seq2seq:
        flag = "--max-length" if given["max_source_length"] is None else "--max-source-length"
        check_length(model, flag, request.source_length)
    return request


def _with_deepspeed_file(request: PlanRequest, given: dict[str, Any]) -> PlanRequest:
    """The request as the JSON of --deepspeed has it, once the linter finds no error in that."""
    # The linter, which a plan without a file does without.
    from dsrun.findings.finding import errors_in
    from dsrun.findings.show import refusal
    from dsrun.recipe.deepspeed_file import as_object, read_text
    from dsrun.zero.lint.config_check import check
    from dsrun.zero.memory.own_config import with_deepspeed

    file = given["deepspeed"]
    text = read_text(Path(file).expanduser(), file)
    if errors := errors_in(check(text, file=file, world_size=request.cluster.world)):
        raise refusal(errors, before="--deepspeed: ")
    flags = {f"--{name.replace('_', '-')}": given[name] for name in ("offload", "micro_batch_size", "optim")}
    flags |= {"--zero": request.stage, "--global-batch-size": request.global_batch}
    flags["--precision"] = None if given["precision"] == "auto" else given["precision"]
    return with_deepspeed(request, as_object(text, file), file, given=flags)


def _first(*values: int | None) -> int:
    """The first that was given; 0 counts as given, and is rejected later."""
    return next(value for value in values if value is not None)


def _cluster(given: dict[str, Any]) -> GpuCluster | None:
    """The GPUs that are named, or those here; None where there are none and no other flag needs them."""
    gpus = given["gpus"]
    if gpus is None:
        here = visible_gpus()
        if not here and any(given[name] for name in NEED_GPUS):
            raise UsageError("this machine has no GPU to plan for", fix="name GPUs: --gpus a100-80:8")
        if not here:
            return None
        sizes = [each.memory_total / GIB for each in here if each.memory_total is not None]
        memory = given["gpu_memory"] or (min(sizes) if sizes else None)
        return cluster(f"{here[0].name}:{len(here)}", nodes=given["nodes"], memory=memory)
    return cluster(gpus, nodes=given["nodes"], memory=given["gpu_memory"])


def _beside(given: dict[str, Any], model: ModelShapes) -> ModelShapes | None:
    """The shapes of DPO's reference, which is the model itself where only adapters train, or of --teacher. Raises
    UsageError for what `dsrun train` would refuse."""
    for flag in ("--task dpo", "--trainer trl") if model.seq2seq else ():
        name, value = flag.removeprefix("--").split()
        if given[name] == value:
            raise refusal("plan.causal", flag=flag)
    if given["teacher"] is None:
        return model if given["task"] == "dpo" and not given["lora"] else None
    shapes = count(find(_model_folder(given["teacher"], given["hub"])), meta=False, from_scratch=False).architecture
    if given["teacher"] in TASKS or shapes.seq2seq != model.seq2seq:
        raise refusal("plan.teacher", teacher=given["teacher"])
    return shapes


def _command_options(given: dict[str, Any]) -> CommandOptions:
    data = tuple(
        arg for name in ("train_file", "dataset") if given[name] for arg in (f"--{name.replace('_', '-')}", given[name])
    )
    if given["teacher"]:
        data += ("--task", "distill", "--teacher", given["teacher"])
    if given["task"]:
        data += ("--task", given["task"])
    folder = Path(given["model"]).expanduser()
    # Without weights, the commands that follow must train from scratch.
    bare = folder.is_dir() and not has_weights(folder)
    return CommandOptions(
        model=given["model"], data=data, nvme_path=given["nvme_path"], from_scratch=given["from_scratch"] or bare,
        deepspeed=given["deepspeed"]
    )  # fmt: skip


def _print_parts(row: PlanCandidate) -> None:
    parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in plan_text.details(row))
    print_line(f"  GiB per GPU: {parts}")


def _print(
    made: MemoryPlan, counted: CountedModel, options: CommandOptions, longest: dict[str, int], given: dict[str, Any]
) -> None:
    every = given["every"]
    for line in plan_text.header(made, counted, options):
        print_line(line)
    print_line()
    if made.choice is not None:
        print_line(f"recommended: {made.why}")
        _print_parts(made.choice)
        if sums := plan_text.exact_sums(made.request, made.choice):
            print_line(f"  {sums}")
        nvme = f"; {size_text(made.choice.nvme)} on each node's NVMe" if made.choice.nvme else ""
        print_line(f"  one checkpoint: {size_text(made.choice.checkpoint)} on disk{nvme}")
        print_line()
    able = sum(row.verdict != "does not fit" for row in made.rows)
    found = f"{able} of {len(made.rows)} strategies fit; speed is relative to the fastest, `+ cpu` is --offload cpu"
    print_line(f"{found if able else 'no strategy fits'}{'' if every else ' (--all shows each by itself)'}:")
    print_table(plan_text.plan_rows(made, every=every))
    print_line()
    rows = ", ".join(f"{way} {tokens:,}" for way, tokens in longest.items() if tokens)
    print_line(f"longest rows, one at a time, in tokens: {rows or 'none'}")
    print_line()
    if given["explain"]:
        _questions().print_parts(_questions().explained(made))
        print_line()
    if made.choice is None:
        _print_remedies(made)
        return
    print_commands(dict.fromkeys(command_lines(made.request, made.choice, options), ""))
    if call := plan_text.python_arguments(made.request, made.choice, options):
        print_line("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
        print_line(f"# your script: {call}")
    elif options.trained and not (given["train_file"] or given["dataset"]):
        print_line("# your data: --train-file FILE or --dataset NAME")
        if not options.data:
            print_line("# without, the built-in demo data is used")


def _print_remedies(made: MemoryPlan) -> None:
    print_line(
        "nothing fits. What would fit:"
        if made.remedies
        else "nothing fits, and neither more or larger GPUs, shorter samples, host memory nor LoRA would help"
    )
    for remedy in made.remedies:
        print_line(f"  {remedy}")
    if made.request.stage is not None or made.request.micro_batch is not None:
        least = min(made.rows, key=lambda row: row.gpu.total)
        print_line(f"{least.strategy} would take with micro batch {made.request.micro_batch or 1}:")
        _print_parts(least)
