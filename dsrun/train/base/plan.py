"""What a run has been decided to be, and what a script brings along in place of what a recipe names; and its plugin:
loaded, checked, and its methods called so that an error names the user's file and line."""

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from dsrun.diagnosis.rules import cause_named
from dsrun.engine_options import OPTIMIZER_ONLY, offloaded_to
from dsrun.errors import DsrunError, MissingError, UsageError, one_line
from dsrun.plugin import API_VERSION, Example, MeanOver, Plugin
from dsrun.recipe.batch import BatchPlan
from dsrun.recipe.precision import TrainingPrecision
from dsrun.recipe.preflight.plugin_file import PluginFile, find_plugin, search_path, shown
from dsrun.recipe.recipe import Recipe, has_data
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.base.rank_context import cause_of
from dsrun.train.base.refusals import refuse
from dsrun.zero.ops import stage_of


@dataclass(frozen=True)
class LoadedPlugin:
    """An object of the class that --plugin names."""

    plugin: Plugin
    file: PluginFile

    def has(self, method: str) -> bool:
        """Whether the plugin has this method of its own."""
        return getattr(type(self.plugin), method) is not getattr(Plugin, method)

    @property
    def identity(self) -> str:
        """Another one where the plugin or its source is."""
        version = f" version {self.plugin.version}" if self.plugin.version else ""
        return f"{self.file.named}{version} (source {self.file.sha256[:12]})"

    @property
    def fingerprint(self) -> str:
        """What prepared data is found by, beside the data."""
        return f"{self.file.named} {self.plugin.version} {self.file.sha256}"

    @property
    def facts(self) -> dict[str, str]:
        """What run.json records."""
        file = self.file
        return {"name": file.named, "version": self.plugin.version, "file": str(file.path), "sha256": file.sha256}

    def rows(self, row: dict[str, Any], split: str, where: str) -> list[dict[str, Any]]:
        with self.blamed("rows", f" ({where})"):
            found = self.plugin.rows(dict(row), split)
        made = found if isinstance(found, list) else [] if found is None else [found]
        if not all(isinstance(each, dict) for each in made):
            self.refuse("rows", found, "a row (dict), a list of rows, or None")
        return made

    def collate(self, batch: dict[str, Any], rows: Any) -> dict[str, Any]:
        import torch

        names, count = set(batch), len(batch["input_ids"])
        with self.blamed("collate"):
            found = self.plugin.collate(batch, rows)
        if not isinstance(found, dict) or not names <= found.keys():
            self.refuse("collate", found, f"a dict with {', '.join(sorted(names))}")
        for name, value in found.items():
            if not isinstance(value, torch.Tensor):
                self.refuse("collate", value, f"a tensor as {name!r}")
        if any(len(found[name]) != count for name in names):
            self.refuse("collate", found, f"a batch of the same {count} rows")
        return found

    def metrics(self, examples: list[Example]) -> dict[str, float]:
        with self.blamed("metrics"):
            found = self.plugin.metrics(examples)
        names = self.plugin.metric_names
        if not isinstance(found, dict) or set(found) != set(names):
            self.refuse("metrics", found, f"a dict of {', '.join(names)}, its metric_names")
        try:
            return {name: float(value) for name, value in found.items()}
        except (TypeError, ValueError):
            self.refuse("metrics", found, "numbers")

    def callbacks(self) -> list[Any]:
        from transformers import TrainerCallback

        with self.blamed("callbacks"):
            found = list(self.plugin.callbacks())
        for each in found:
            if not isinstance(each, TrainerCallback):
                self.refuse("callbacks", each, "a list of transformers.TrainerCallback objects")
            for name in dir(TrainerCallback):
                if name.startswith("on_") and getattr(type(each), name) is not getattr(TrainerCallback, name):
                    blamed = self.blamed(f"{type(each).__name__}.{name}")  # as a decorator, it begins with each call
                    setattr(each, name, blamed(getattr(each, name)))
        return found

    @contextmanager
    def blamed(self, method: str, what: str = "") -> Iterator[None]:
        """Errors inside as one line that says where in the user's code they arose; not those that dsrun has an answer
        to, such as too little memory or a lost rank."""
        try:
            yield
        except Exception as error:
            cause = cause_of(error)
            if isinstance(error, DsrunError) or (cause and cause_named(cause).then != "stop"):
                raise
            _raise(f"--plugin {self.file.named}: {method}() failed", error, self.file, what)

    def refuse(self, method: str, found: Any, wanted: str) -> NoReturn:
        """Raise UsageError for what a method has returned."""
        code = getattr(type(self.plugin), method).__code__
        place = f"{shown(Path(code.co_filename))}:{code.co_firstlineno}"
        what = f"{method}() at {place} returned {_kind(found)}; it must return {wanted}"
        raise UsageError(f"--plugin {self.file.named}: {what}")


def load_plugin(spec: TrainSpec) -> LoadedPlugin | None:
    """The plugin of --plugin. Raises UsageError where it is not one, MissingError where it needs a missing package."""
    named = spec.plugin
    if named is None:
        return None
    file = find_plugin(named)
    # Where the preflight, which runs in the command `dsrun`, has found it.
    sys.path[:] = search_path()
    try:
        kind = getattr(import_module(file.module), file.class_name)
    except Exception as error:
        _raise(f"--plugin {named}: importing it failed", error, file)
    is_plugin, version = isinstance(kind, type) and issubclass(kind, Plugin), getattr(kind, "api_version", None)
    names = {"named": named, "own": file.class_name, "where": shown(file.path), "ours": API_VERSION}
    refuse("plugin_class", **names, is_plugin=is_plugin, version=version)
    try:
        found = LoadedPlugin(kind(), file)
    except Exception as error:
        _raise(f"--plugin {named}: {file.class_name}() failed", error, file)
    plugin, means = found.plugin, get_args(MeanOver)
    is_tuple = isinstance(plugin.metric_names, tuple)
    refuse("plugin", plugin=plugin, named=named, has=found.has, is_tuple=is_tuple, spec=spec, means=means)
    return found


def _raise(what: str, error: Exception, file: PluginFile, more: str = "") -> NoReturn:
    kind = MissingError if isinstance(error, ModuleNotFoundError) else UsageError
    message = f"{what} at {_place(error, file)}: {type(error).__name__}: {one_line(error)}{more}"
    raise kind(message, cause=cause_of(error)) from error


def _place(error: Exception, file: PluginFile) -> str:
    """Where in the user's own code an error arose, else where it did."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown(Path(error.filename))}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) in file.files]
    last = (own or frames)[-1]
    return f"{shown(Path(last.filename))}:{last.lineno}"


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(str, value)) or 'nothing'}"
    shape = f" of shape {list(value.shape)}" if hasattr(value, "shape") else ""
    return "nothing" if value is None else f"a {type(value).__name__}{shape}"


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
