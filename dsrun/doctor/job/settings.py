"""A job's settings, the DeepSpeed JSON that it names, the files and packages that it needs, and its number format."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError
from dsrun.findings.conditions import first_where
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.models.families import family_of, model_type_of
from dsrun.recipe.batch import batch_of
from dsrun.recipe.deepspeed_file import as_object, read_text, with_deepspeed_read
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.precision import BF16_FROM, decide_precision
from dsrun.recipe.preflight.files import check_inputs
from dsrun.recipe.preflight.packages import check_packages
from dsrun.recipe.recipe import Recipe, phases
from dsrun.system.host import cpu_bf16
from dsrun.zero.generate.config import config_of_flags
from dsrun.zero.lint.config_check import check
from dsrun.zero.ops import required_ops
from dsrun.zero.view import TrainingFlags


def ranks_here(machine: MachineFacts, target: DoctorTarget) -> int | None:
    """Ranks on this machine; None for a job of SLURM's that does not say, as its nodes are others."""
    if target.nproc is not None:
        return target.nproc
    return len(machine.gpus) or 1 if target.runs_on(machine) else None


def world_size(machine: MachineFacts, target: DoctorTarget) -> int | None:
    """Ranks of the whole job; None where it is not known."""
    ranks = ranks_here(machine, target)
    return None if ranks is None else ranks * max(1, target.nodes)


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
