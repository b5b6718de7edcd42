"""The parameter count: from the headers of the weights; of a bare config.json on the meta device in a child process
where torch is installed, else from the shapes that are written down of its family."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from dsrun.errors import MissingError, ToolError, UsageError, nearest
from dsrun.findings.finding import Finding
from dsrun.models.families import family_of, is_trained
from dsrun.models.folder import FoundModel
from dsrun.zero.memory.model.architecture import LayerWeight, ModelShapes
from dsrun.zero.memory.model.shapes import families, tensors_of
from dsrun.zero.memory.model.widths import architecture_of


def describe(config: Mapping[str, Any], *, from_scratch: bool = False) -> ModelShapes:
    """The architecture behind a config.json's content.

    `from_scratch`: the model is initialised from the config instead of loaded, which ties embeddings of some T5
    models that loading keeps apart. Raises MissingError for a family this module has no shapes of and UsageError
    for a config whose numbers make no model."""
    family = str(config.get("model_type"))
    if family not in families():
        near = nearest(family, families())
        hint = f" (did you mean {near}?)" if near else ""
        what = f"the parameters of model type {family!r} cannot be counted without torch and transformers{hint}"
        raise MissingError(what, fix="install dsrun[train]")
    if from_scratch and family_of(family).unties_when_loaded:
        config = {**config, "tie_word_embeddings": True}
    return architecture_of(config, tensors_of(config, family))


def check_length(architecture: ModelShapes, flag: str, tokens: int) -> None:
    """Refuse a length that the model's position table does not reach."""
    if architecture.positions is not None and tokens > architecture.positions:
        what = f"{flag} {tokens:,}: {architecture.family} has positions for {architecture.positions:,} tokens"
        raise UsageError(what, fix=f"use at most {architecture.positions}")


PREFIX = "plan."
TOLERANCE = 0.005
"""Share by which files may differ from what their config describes."""
_COUNTER = "dsrun.train.model.zero_auto"
_COUNTER_S = 300.0
_RAISED = re.compile(r"[\w.]+(Error|Exception): \S")
"""The line of a traceback that names the exception."""
_REASON = 300
"""Letters of it that are shown."""


class CountedModel(NamedTuple):
    """An architecture, how its parameters were counted, and notes on that."""

    architecture: ModelShapes
    how: str
    findings: tuple[Finding, ...] = ()
    trained: bool = True
    """Whether `dsrun train` trains models of its kind."""


def count(found: FoundModel, *, meta: bool | None = None, from_scratch: bool = False) -> CountedModel:
    """The architecture of a model and its exact parameter count.

    Of a model that is loaded, the headers of its weights are the count. `meta`: count on the meta device all the same;
    None does so for a bare config where torch and transformers are installed. Raises MissingError when no way knows
    the model, ToolError when the child process fails on a model that needs it."""
    known = found.config["model_type"] in families()
    stored = None
    if found.stored:
        from dsrun.zero.memory.model.stored import stored_architecture  # which a bare config does without

        stored = stored_architecture(found)
    if stored is not None and known:
        stored = _ordered(stored, found.config)
    if meta is None:
        config_alone = stored is None or from_scratch
        meta = config_alone and find_spec("torch") is not None and find_spec("transformers") is not None
    if stored is not None and not meta and not (from_scratch and known):
        made = CountedModel(architecture=stored, how="the headers of the weights")
    elif meta:
        made = _on_meta_device(found, from_scratch=from_scratch, known=known)
    else:
        shapes = describe(found.config, from_scratch=from_scratch)
        made = CountedModel(architecture=shapes, how="the architecture's shapes")
    trained = is_trained(found.config)
    notes = _notes(found, made.architecture, belongs=stored is not None, trained=trained)
    return made._replace(findings=(*made.findings, *notes), trained=trained)


def _ordered(stored: ModelShapes, config: Mapping[str, Any]) -> ModelShapes | None:
    """In the model's own order, which the shapes of its family have; None where the files lack weights that the config
    describes, or hold others: training refuses them, or draws them."""
    try:
        described = describe(config)
    except UsageError:  # the headers know what the config does not say
        return stored
    if _tensors(described) == _tensors(stored):
        return described
    differs = abs(stored.parameters - described.parameters) > TOLERANCE * described.parameters
    return None if differs else stored


def _tensors(architecture: ModelShapes) -> Counter[tuple[tuple[int, ...], str]]:
    return Counter((weight.shape, weight.kind) for weight in architecture.tensors())


def _on_meta_device(found: FoundModel, *, from_scratch: bool, known: bool) -> CountedModel:
    try:
        tensors, settings = _tensors_of(found.folder)
    except ToolError as error:
        if not known:
            raise
        from dsrun.findings.finding import finding_of

        finding = finding_of("meta-count", prefix=PREFIX, why=str(error), where=str(found.folder))
        shapes = describe(found.config, from_scratch=from_scratch)
        return CountedModel(architecture=shapes, how="the architecture's shapes", findings=(finding,))
    loaded = as_loaded(found, tensors, from_scratch=from_scratch)
    return CountedModel(architecture=architecture_of(settings, loaded), how="transformers on the meta device")


def _tensors_of(folder: Path) -> tuple[tuple[LayerWeight, ...], dict[str, Any]]:
    """Every tensor of the model, and its settings with transformers' defaults, from a process that may load torch.

    Raises ToolError when it fails."""
    from dsrun.system.process.proc import capture  # a process, which the other ways do without
    from dsrun.system.terminal.status_line import status

    with status("counting the parameters"):
        argv = [sys.executable, "-m", _COUNTER, str(folder)]
        done = capture(argv, seconds=_COUNTER_S, changes={"HF_HUB_OFFLINE": "1"})
    if done.returncode != 0:
        raise ToolError(f"counting {folder} on the meta device failed: {_reason(done.stderr)}")
    output = json.loads(done.stdout.strip().splitlines()[-1])
    tensors = tuple(LayerWeight(name, tuple(shape), kind) for name, shape, kind in output["tensors"])
    return tensors, output["config"]


def _reason(stderr: str) -> str:
    """The first line of the exception that ended a process: transformers' go on for several. One that ends in a colon
    is nothing without the next."""
    lines = stderr.strip().splitlines() or ["no output"]
    raised = [number for number, line in enumerate(lines) if _RAISED.match(line)]
    if not raised:
        return lines[-1][:_REASON]
    reason = lines[raised[-1]].partition(": ")[2]
    if reason.endswith(":"):
        reason = " ".join([reason, *(line.strip() for line in lines[raised[-1] + 1 :][:1])])
    return reason[:_REASON]


def as_loaded(found: FoundModel, tensors: tuple[LayerWeight, ...], *, from_scratch: bool) -> tuple[LayerWeight, ...]:
    """T5 models whose config unties the embeddings get their own output embedding when they are loaded.

    (transformers 5 builds them tied, see shapes.toml.)"""
    family, tied = found.config["model_type"], found.config.get("tie_word_embeddings", True)
    if from_scratch or tied or not family_of(family).unties_when_loaded:
        return tensors
    table = max(tensors, key=lambda each: each.kind == "embedding")
    return (*tensors, LayerWeight("lm_head.weight", table.shape, "head"))


def _notes(found: FoundModel, architecture: ModelShapes, *, belongs: bool, trained: bool) -> Iterator[Finding]:
    from dsrun.findings.finding import finding_of

    where = str(found.folder)
    if found.quantised:
        yield finding_of("quantized", prefix=PREFIX, quantised=found.quantised, where=where)
    elif found.stored is not None and not belongs:
        total, counted = sum(prod(shape) for shape in found.stored.values()), architecture.parameters
        if abs(total - counted) > TOLERANCE * counted:
            yield finding_of("files-differ", prefix=PREFIX, total=total, counted=counted, where=where)
    if not trained:
        yield finding_of("not-trained", prefix=PREFIX, model_type=found.config["model_type"], where=where)
