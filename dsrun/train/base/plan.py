"""What a run has been decided to be, and what a script brings along in place of what a recipe names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dsrun.engine_options import OPTIMIZER_ONLY, offloaded_to
from dsrun.recipe.batch import BatchPlan
from dsrun.recipe.precision import TrainingPrecision
from dsrun.recipe.recipe import Recipe, has_data
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.base.plugin import LoadedPlugin
from dsrun.train.base.refusals import refuse
from dsrun.zero.ops import stage_of

ModelTask = Literal["seq2seq", "causal-lm"]


@dataclass(frozen=True)
class Given:
    """`model` builds the model of `config`, or returns it where it `is_built` already; `rows` are those of each split,
    a sequence or a dataset; `command` is the command line of the script. What is None or empty comes from the recipe.
    """

    config: Any = None
    model: Callable[[], Any] | None = None
    tokenizer: Any = None
    rows: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    is_built: bool = False

    def check(self, spec: TrainSpec) -> None:
        """Raise UsageError for settings that do not go with what is given."""
        refuse("given", rows=self.rows, has_data=has_data(spec), is_built=self.is_built, spec=spec)


NOTHING = Given()


@dataclass(frozen=True)
class TrainingPlan:
    """What follows from flags, hardware, the model's config and earlier attempts; see `dsrun.train.decide_plan`."""

    recipe: Recipe
    title: str
    world: DistributedWorld
    config: Any
    task: ModelTask
    batch: BatchPlan
    precision: TrainingPrecision
    deepspeed: dict[str, Any] | None
    phases: frozenset[str]
    plugin: LoadedPlugin | None = None
    given: Given = NOTHING

    @property
    def objective(self) -> str:
        """What is learned: "seq2seq", "dpo (hinge, beta 0.1)", "distill (forward, from org/teacher)"."""
        spec = self.recipe.spec
        if spec.task == "dpo":
            return f"dpo ({spec.dpo_loss}, beta {spec.dpo_beta:g})"
        return f"distill ({spec.distill_loss}, from {spec.teacher})" if spec.task == "distill" else self.task

    @property
    def parallel(self) -> str:
        """ "ZeRO-2 on 8 GPUs". Evaluation alone needs DeepSpeed's engine under ZeRO-3 only."""
        stage, offload = stage_of(self.deepspeed), self.recipe.spec.offload
        if "train" not in self.phases and stage < 3:
            return self.world.ranks_named
        zero = f"ZeRO-{stage}" if self.deepspeed is not None else "plain DDP (ZeRO 0)"
        place = f", {'optimizer ' if offload == OPTIMIZER_ONLY else ''}offloaded to {offloaded_to(offload)}"
        return f"{zero}{'' if offload == 'none' else place} on {self.world.ranks_named}"
