"""A job's settings, the DeepSpeed JSON that it names, the files and packages that it needs, and its number format; and
the job as the memory planner takes it, and what its plan says of host memory and checkpoints."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from dsrun.datafiles import evaluate as evaluated
from dsrun.datafiles import toml_beside
from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.host.limits import ranks_of
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError
from dsrun.findings.finding import Finding, finding_of, first_where, text_of
from dsrun.hub.modelscope_cache import stored_name
from dsrun.models.families import family_of, model_type_of
from dsrun.models.folder import find
from dsrun.recipe.batch import batch_of
from dsrun.recipe.deepspeed_file import as_object, read_text, with_deepspeed_read
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.precision import BF16_FROM, decide_precision
from dsrun.recipe.preflight.files import check_inputs
from dsrun.recipe.recipe import Recipe, phases
from dsrun.recipe.recipe_spec import DEFAULT_TARGET
from dsrun.recipe.trackers import check_packages
from dsrun.system.host import cpu_bf16
from dsrun.zero.generate.config import config_of_flags
from dsrun.zero.generate.presets import USUAL_MEMORY_GIB
from dsrun.zero.lint.config_check import check
from dsrun.zero.memory.model.count import count
from dsrun.zero.memory.own_config import with_deepspeed
from dsrun.zero.memory.peak import ZeroStrategy
from dsrun.zero.memory.plan_request import (
    PLACES,
    USUAL_LENGTH,
    GpuCluster,
    PlanRequest,
    attention_of,
    cluster,
    default_precision,
    is_place,
)
from dsrun.zero.memory.rank.activations import LIGER
from dsrun.zero.memory.rank.optimizers import DEFAULT
from dsrun.zero.memory.rank.states import FP32, StateOffload
from dsrun.zero.memory.strategy import evaluate
from dsrun.zero.ops import required_ops
from dsrun.zero.view import TrainingFlags


def world_size(machine: MachineFacts, target: DoctorTarget) -> int | None:
    """Ranks of the whole job; None where it is not known: a job of SLURM's does not say, as its nodes are others."""
    if target.nproc is None and not target.runs_on(machine):
        return None
    ranks = (len(machine.gpus) or 1) if target.nproc is None else target.nproc
    return ranks * max(1, target.nodes)


def look_at_config(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """What `dsrun config check --against` finds in the job's DeepSpeed JSON."""
    recipe = target.recipe
    if recipe is None or not recipe.hf.get("deepspeed"):
        return
    try:
        found = _linted(target, recipe, world_size(machine, target))
    except DsrunError as error:
        yield Finding(level="error", code="deepspeed_json_unreadable", message=error.message, fix=error.fix or "")
        return
    problems = [each for each in found if each.level != "info"]
    for each in problems:
        yield replace(each, code=f"deepspeed_json_{each.code}")
    if not problems:
        name = recipe.hf["deepspeed"]
        yield finding_of("deepspeed_json", name=text_of("deepspeed_json.inline") if isinstance(name, dict) else name)


def _linted(target: DoctorTarget, recipe: Recipe, world: int | None) -> list[Finding]:
    """The linter's findings. Raises DsrunError where it does not get to see the file."""
    found: list[Finding] = []
    seen: list[str] = []

    def lint(
        text: str, file: str, *, values: Mapping[str, Any], places: Mapping[str, str], force: bool, **more: Any
    ) -> None:
        del force
        seen.append(file)
        flags = TrainingFlags(dict(values), frozenset(places), dict(places))
        found.extend(check(text, file=file, against=flags, **more))

    try:
        with_deepspeed_read(recipe, target.cwd, world_size=world, lint=lint)
    except DsrunError:
        if not seen and world is not None:  # a batch that does not divide among the ranks is told apart
            return _linted(target, recipe, None)
        if not seen:
            raise
    return found


def look_at_settings(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """Flags that do not exist any more or contradict each other, and batch sizes that do not divide."""
    if target.refused:
        yield target.refused
    recipe = target.recipe
    if recipe is None:
        return
    removed = [notice for notice in recipe.notices if "is no longer a flag" in notice]
    for notice in removed:
        fix = f"dsrun config upgrade {recipe.spec.config or 'run.yaml'}"
        yield Finding(level="warning", code="settings_removed", message=notice, fix=fix)
    world = world_size(machine, target)
    settings = recipe.spec.config or text_of("settings.flags")
    found = finding_of("settings", settings=settings)
    if world is not None:
        try:
            batch = batch_of(recipe, world).sentence("GPU" if machine.gpus else "rank")
        except DsrunError as error:
            yield Finding(level="error", code="settings_batch", message=error.message, fix=error.fix or "")
            return
        found = finding_of("settings.batch", settings=settings, batch=batch)
    if not removed:
        yield found


def look_at_files(_: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """What `dsrun train` looks at before it starts: model, data, plugin, packages."""
    recipe = target.recipe
    if recipe is None:
        return
    found = []
    for look in (check_inputs, check_packages):
        try:
            look(recipe)
        except DsrunError as error:
            found.append(Finding(level="error", code="files", message=error.message, fix=error.fix or ""))
    yield from found or [finding_of("files")]


def look_at_precision(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """What `dsrun train` would refuse, or choose in place of what is fast: bf16 where it is computed, and fp16 where it
    overflows."""
    recipe = target.recipe
    if recipe is None or not target.runs_on(machine):
        return
    gpus = machine.gpus
    on_gpu = bool(gpus) and not recipe.hf.get("use_cpu")
    slow = [gpu for gpu in gpus if gpu.capability < BF16_FROM]
    able = not slow if on_gpu else cpu_bf16(machine.root)
    kind = recipe.spec.model_type or model_type_of(recipe.spec.model) or ""
    try:
        chosen = decide_precision(
            recipe.hf,
            model_type=kind,
            bf16_supported=able,
            device="cuda" if on_gpu else "cpu",
            deepspeed=config_of(target) if recipe.hf.get("deepspeed") else None,
            force=recipe.spec.force,
        )
    except DsrunError as error:
        yield Finding(level="error", code="precision", message=error.message, fix=error.fix or "")
        return
    names = {"chosen": chosen, "on_gpu": on_gpu, "slow": slow, "kind": kind, "gpus": gpus}
    yield from first_where(__file__, "precision", overflows=family_of(kind).overflows_in_fp16, **names)


def config_of(target: DoctorTarget) -> dict[str, Any] | None:
    """The user's own JSON, or the one that the flags ask for; None for plain DDP, for --zero auto, and where the file
    cannot be read, which another check reports."""
    recipe = target.recipe
    if recipe is None:
        return None
    own = recipe.hf.get("deepspeed")
    if own is not None:
        try:
            return own if isinstance(own, dict) else as_object(read_text(target.cwd / own, str(own)), str(own))
        except DsrunError:
            return None
    spec = recipe.spec
    if spec.zero == "auto":
        return None
    stage = ZERO_STAGE if spec.zero is None else int(spec.zero)
    try:
        return config_of_flags(
            stage, offload=spec.offload, optim=recipe.hf.get("optim"), options=spec, hidden_size=None
        )
    except DsrunError:
        return None


def ops_of(target: DoctorTarget) -> list[str]:
    """DeepSpeed's compiled operations that the job loads, by the names of build/ops.toml."""
    config = config_of(target)
    if config is None or target.recipe is None:
        return []
    names = {"CPUAdamBuilder": "cpu_adam", "FusedAdamBuilder": "fused_adam", "AsyncIOBuilder": "async_io"}
    return [names[name] for name in required_ops(config, training="train" in phases(target.recipe))]


ANY_GPU = "GPU"
"""What is planned for where there is no GPU: neither host memory nor checkpoints depend on it."""


def request_of(machine: MachineFacts, target: DoctorTarget, recipe: Recipe, here: GpuCluster) -> PlanRequest:
    """The job on the GPUs `here`; with --zero auto, stage, micro batch and recomputation are left to the planner.

    Raises DsrunError where the model's config is not on this machine, its shapes are not known, or the job's settings
    do not go together."""
    spec, hf = recipe.spec, recipe.hf
    name = stored_name(spec.model or "", spec, machine.environ)
    model = count(find(name, machine.environ), meta=False, from_scratch=spec.from_scratch).architecture
    beside = model if spec.task == "dpo" and not spec.lora else None
    if spec.task == "distill":
        teacher = stored_name(spec.teacher or "", spec, machine.environ)
        beside = count(find(teacher, machine.environ), meta=False, from_scratch=False).architecture
    usual = min(USUAL_LENGTH, model.positions or USUAL_LENGTH)
    asked = "bf16" if hf.get("bf16") else "fp16" if hf.get("fp16") else "auto"
    micro = spec.micro_batch_size or hf.get("per_device_train_batch_size")
    if micro is None and spec.zero != "auto":
        micro = batch_of(recipe, here.world).micro_batch
    names: dict[str, Any] = {each.__name__: each for each in (attention_of, default_precision, frozenset, str)}
    names |= {
        "LIGER": LIGER,
        "DEFAULT": DEFAULT,
        "DEFAULT_TARGET": DEFAULT_TARGET,
        "FP32": FP32,
        "asked": asked,
        "usual": usual,
    }
    names |= {"spec": spec, "hf": hf, "model": model, "cluster": here, "micro_batch": micro, "beside": beside}
    rows = toml_beside(__file__, "memory_plan.toml")["request"]
    request = PlanRequest(**{name: evaluated(value, names) for name, value in rows.items()})
    own = config_of(target) if hf.get("deepspeed") else None
    if own is not None:
        return replace(with_deepspeed(request, own, "the DeepSpeed JSON", given={}), micro_batch=micro)
    if spec.zero == "auto":
        return request
    stage = ZERO_STAGE if spec.zero is None else int(spec.zero)
    return replace(request, stage=stage, offload=_place(stage, recipe))


def _place(stage: int, recipe: Recipe) -> StateOffload:
    """Where the optimizer states are, for the job's --offload."""
    return next(each for each in PLACES[stage] if is_place(stage, each, recipe.spec.offload))


class MemoryNeeds(NamedTuple):
    """Bytes: of host memory per node in training and while the weights are loaded, of NVMe per node, of one checkpoint
    and of the final model."""

    host: int
    host_loading: int
    nvme: int
    checkpoint: int
    model: int


def needs(machine: MachineFacts, target: DoctorTarget) -> MemoryNeeds | None:
    """What the job needs of this machine; None where no job is known, or its model's config is not here, or is of a
    kind that is counted with torch only. A plan for `--zero auto` is one for the default stage."""
    recipe = target.recipe
    if recipe is None or recipe.spec.model is None:
        return None
    try:
        request = request_of(machine, target, recipe, _cluster(machine, target))
        # The job's own strategy; with --zero auto one of the default stage.
        stage = ZERO_STAGE if request.stage is None else request.stage
        place = request.offload or _place(stage, recipe)
        master = recipe.spec.bf16_master_weights and place == "none"
        strategy = ZeroStrategy(stage=stage, offload=place, checkpointing=True, bf16_master=master)
        # Activations are not what is asked here.
        found = evaluate(replace(request, micro_batch=1, global_batch=None), strategy)
    except DsrunError:
        return None  # other checks say what is wrong with the job
    width = FP32 if request.precision == "fp32" else 2
    model = width * request.model.parameters
    return MemoryNeeds(found.host, found.host_loading, found.nvme, found.checkpoint, model)


def _cluster(machine: MachineFacts, target: DoctorTarget) -> GpuCluster:
    gpus = usable(machine)
    name = gpus[0].name if gpus else ANY_GPU
    return cluster(f"{name}:{ranks_of(machine, target)}", nodes=max(1, target.nodes), memory=float(USUAL_MEMORY_GIB))
