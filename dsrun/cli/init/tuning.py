"""How a first run trains: full or LoRA, ZeRO stage and offload by the plan of `--zero auto`, and the global batch."""

from dataclasses import dataclass, replace
from typing import Any

from dsrun.cli.init.data import InitData
from dsrun.cli.init.interview import QUESTIONS, InitAnswer, InitInterview, question
from dsrun.cli.init.model import InitModel
from dsrun.cli.init.place import TrainingPlace
from dsrun.datafiles import SubjectNames, toml_beside
from dsrun.demo.models import DEFAULTS
from dsrun.errors import FindingsError, UsageError
from dsrun.recipe.batch import DEFAULT_MICRO_BATCH, batch_plan
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.recipe_spec import DEFAULT_TARGET
from dsrun.system.terminal.stderr import print_note
from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory.calibration import remembered
from dsrun.zero.memory.plan import ADVISED_RANK, ChosenPlan, choose, plan, settings
from dsrun.zero.memory.plan_request import SHARES, USUAL_LENGTH, PlanRequest, default_precision

FULL = "full"
BYTES_PER_PARAMETER = 16
"""fp32 weight, gradient and both moments of AdamW, as they are trained on a CPU."""
MANY_ROWS = 5000
LARGE_BATCH, SMALL_BATCH, CPU_BATCH = 64, 16, 8


@dataclass(frozen=True, kw_only=True)
class PlannedChoice:
    """A choice of the planner and its share of each GPU's memory, more than the preset's where it `is_tight`; `refused`
    says why nothing fits."""

    chosen: ChosenPlan | None = None
    share: float = 0.0
    is_tight: bool = False
    refused: UsageError | None = None

    def text(self, name: str) -> str:
        """One of tuning.toml, which is empty where nothing was planned."""
        return str(SubjectNames(self, toml_beside(__file__))[name])


@dataclass(frozen=True, kw_only=True)
class InitTuning:
    """The answers; `zero` are values of flags that the plan chose, `why` its reason."""

    preset: InitAnswer[str] | None
    lora: InitAnswer[int]
    batch: InitAnswer[int] | None
    zero: dict[str, object]
    why: str


def ask_tuning(
    interview: InitInterview, given: dict[str, Any], model: InitModel, data: InitData, place: TrainingPlace
) -> InitTuning:
    """Ask for the preset where GPUs are planned for, for LoRA, and for the global batch.

    Raises FindingsError where nothing fits."""
    planner = _Planner(model, data, place, is_fixed=given["zero"] is not None or given["offload"] is not None)
    if planner.plans and place.cluster is not None and place.cluster.note:
        print_note(place.cluster.note.partition(" (--")[0])
    preset = None
    if planner.plans or given["preset"]:
        choices = [(name, f"{SHARES[name]:.0%}: {what}") for name, what in QUESTIONS["--preset"]["choices"]]
        preset = interview.answer(question("--preset", str, choices=choices), given["preset"])
        planner.preset = preset.value
    lora = _ask_lora(interview, given, planner)
    batch = _ask_batch(interview, given, planner, lora.value)
    zero, why = _stage(given, planner, lora.value, batch.value if batch else None)
    return InitTuning(preset=preset, lora=lora, batch=batch, zero=zero, why=why)


class _Planner:
    """The plan of `dsrun train --zero auto` for the GPUs of a place; none where the user has fixed the strategy, where
    the model's shapes or the GPUs are not known, and for demos, which fit anywhere."""

    def __init__(self, model: InitModel, data: InitData, place: TrainingPlace, *, is_fixed: bool) -> None:
        self.model, self.data, self.place = model, data, place
        self.preset = "balanced"
        self.plans = model.architecture is not None and place.cluster is not None and not is_fixed

    def plan(self, lora: int, batch: int | None) -> PlannedChoice:
        """The choice with adapters of rank `lora`, 0 for all weights, and a global batch; empty where none is made."""
        model, gpus = self.model.architecture, self.place.cluster
        if not self.plans or model is None or gpus is None:
            return PlannedChoice()
        usual = min(USUAL_LENGTH, model.positions or USUAL_LENGTH)
        try:
            request = PlanRequest(
                model=model,
                cluster=gpus,
                length=min(DEFAULT_TARGET, usual) if model.seq2seq else usual,
                source_length=usual,
                global_batch=batch,
                lora=lora or None,
                preset=self.preset,
                precision=default_precision("auto", model, gpus),
                host_memory=self.place.host_memory,
            )
            request = replace(request, factor=remembered(self.model.config or {}, request))
            chosen = choose(request)
        except UsageError as error:
            return PlannedChoice(refused=error)
        row = next(each for each in plan(request).rows if vars(each.strategy).items() <= vars(chosen).items())
        share = row.gpu.total / GIB / gpus.memory
        return PlannedChoice(chosen=chosen, share=share, is_tight=row.verdict == "tight")


def _ask_lora(interview: InitInterview, given: dict[str, Any], planner: _Planner) -> InitAnswer[int]:
    model = planner.model
    if (model.is_demo or model.from_scratch) and given["lora"] is None:
        return InitAnswer(0, "a model that is trained from scratch has no use for LoRA")
    full, small = planner.plan(0, None), planner.plan(ADVISED_RANK, None)
    if full.refused and small.refused and given["lora"] is None:
        raise FindingsError(f"{model.name}: {full.refused.message}", fix=full.refused.fix)
    default, why = _lora_default(model, planner.place, full, small)
    offers = f"all weights{full.text('offer')}", f"LoRA of this rank{small.text('offer')}"
    choices = tuple(zip((FULL, str(ADVISED_RANK)), offers, strict=True))
    asked = question("--lora", lambda text: _check_rank(text, planner), choices=choices, default=default, why=why)
    return interview.answer(asked, given["lora"])


def _lora_default(model: InitModel, place: TrainingPlace, full: PlannedChoice, small: PlannedChoice) -> tuple[str, str]:
    parameters = model.architecture.parameters if model.architecture else 0
    needed = parameters * BYTES_PER_PARAMETER / GIB
    if place.on_cpu and place.host_memory is not None and needed > place.host_memory:
        has = f"this machine has {place.host_memory:.0f} GiB of memory"
        print_note(f"training all {parameters / 1e9:.1f} billion weights on the CPU takes {needed:.0f} GiB, and {has}")
        return str(ADVISED_RANK), f"all weights take {needed:.0f} GiB, and {has}"
    if small.chosen is not None and (drawback := full.text("drawback")):
        return str(ADVISED_RANK), f"all weights {drawback}"
    return FULL, "all weights fit" if full.chosen else "adapters are for models that do not fit"


def _check_rank(text: str, planner: _Planner) -> int:
    model = planner.model
    rank = 0 if text == FULL else ADVISED_RANK if text == "lora" else int(text) if _is_number(text) else -1
    if rank < 0:
        raise UsageError(f"--lora {text} is not a rank", fix=f"{ADVISED_RANK}, or 0 to train all weights")
    if rank and (model.is_demo or model.from_scratch):
        raise UsageError(f"--lora {rank}: {model.name} is trained from scratch, all weights", fix="leave it out")
    if refused := planner.plan(rank, None).refused:
        raise refused
    return rank


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _ask_batch(interview: InitInterview, given: dict[str, Any], planner: _Planner, lora: int) -> InitAnswer[int] | None:
    model, data, place = planner.model, planner.data, planner.place
    if model.name in DEFAULTS and given["global_batch_size"] is None:
        return None  # each demo has its own
    usual, why = LARGE_BATCH, "a usual size"
    if place.on_cpu:
        usual, why = CPU_BATCH, "small, as CPUs are slow"
    elif data.rows is not None and data.rows < MANY_ROWS:
        usual, why = SMALL_BATCH, f"small, as the data has about {data.rows:,} row{'s' * (data.rows != 1)}"
    default = -(-usual // place.world) * place.world
    asked = question(
        "--global-batch-size", lambda text: _check_batch(text, planner, lora), default=str(default), why=why
    )
    if place.world > 1:
        asked = replace(asked, text=f"{asked.text} A multiple of {place.world}.")
    return interview.answer(asked, given["global_batch_size"])


def _check_batch(text: str, planner: _Planner, lora: int) -> int:
    if not _is_number(text) or int(text) == 0:
        raise UsageError(f"--global-batch-size {text} is not a number of samples", fix="64, for example")
    batch_plan(
        global_batch_size=int(text), micro_batch_size=None, accumulation=None, world_size=planner.place.world,
        default_micro=DEFAULT_MICRO_BATCH,
    )  # fmt: skip
    if refused := planner.plan(lora, int(text)).refused:
        raise refused
    return int(text)


def _stage(given: dict[str, Any], planner: _Planner, lora: int, batch: int | None) -> tuple[dict[str, object], str]:
    """ZeRO's values, and those of the micro batch and recomputation that go with them."""
    place, model = planner.place, planner.model
    if given["zero"] is not None or given["offload"] is not None:
        values: dict[str, object] = {"zero": given["zero"] or "auto"}
        if given["offload"] is not None:
            values["offload"] = given["offload"]
        return values, "as --zero and --offload say"
    if place.on_cpu or model.is_demo:
        why = "there is no GPU whose memory could run out" if place.on_cpu else "the demo fits anywhere"
        return {"zero": str(ZERO_STAGE)}, why
    if not planner.plans:
        config = "its family is counted" if model.config else "its config is downloaded"
        unknown = place.unknown or f"{config} when the run starts"
        return {"zero": "auto"}, f"planned when the run starts: {unknown}"
    found = planner.plan(lora, batch)
    if found.chosen is None:
        refused = found.refused
        raise FindingsError(refused.message if refused else "nothing fits", fix=refused.fix if refused else None)
    return settings(found.chosen), f"as `--zero auto` plans{found.text('words')}"
