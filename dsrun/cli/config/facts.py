"""What `dsrun config` finds out about the model and the GPU that it is given."""

from contextlib import suppress
from pathlib import Path

from dsrun.demo import models
from dsrun.errors import DsrunError, MissingError
from dsrun.hardware.gpu_facts import require_gpu
from dsrun.models.folder import FoundModel, find
from dsrun.system.terminal.stderr import print_note
from dsrun.zero.generate.blocks import HardwareFacts, steps_of
from dsrun.zero.generate.presets import FROM_STEPS
from dsrun.zero.generate.spec import ZeroSpec
from dsrun.zero.memory.model.shapes import ModelSettings


def find_facts(spec: ZeroSpec) -> HardwareFacts:
    """What is known about the spec's model and GPU. Raises UsageError for an unknown GPU."""
    found = _found(spec.model) if spec.model else None
    config = found.config if found else {}
    inner = config.get("text_config")
    names = ("hidden_size", "d_model", "n_embd", "hidden_dim")
    width = ModelSettings(config).optional(*names) or ModelSettings(inner if isinstance(inner, dict) else {}).optional(
        *names
    )
    if spec.model and config and not width:
        print_note(f"the config.json of {spec.model} has no width: sizes as without --model")
    # Counted only where a value or its reason depends on it: counting some models takes seconds.
    sums = (steps_of(spec) or 1) >= FROM_STEPS
    model = None
    if found and (spec.offload_param == "nvme" or sums):
        from dsrun.zero.memory.model.count import count  # for the few values that depend on it

        with suppress(DsrunError):  # neither its weights nor its config tell the shapes
            model = count(found, meta=False).architecture
    return HardwareFacts(
        hidden_size=width,
        largest=model.largest if model else None,
        parameters=model.parameters if model else None,
        model_type=config.get("model_type"),
        gpu=require_gpu(spec.gpu) if spec.gpu is not None else None,
    )


def _found(model: str) -> FoundModel | None:
    """The model's folder; None, with a note, if it is not on this machine."""
    if model in models.TASKS:
        return FoundModel(name=model, folder=Path(), config=models.model_config(model), stored=None)
    try:
        return find(model)
    except MissingError:
        print_note(f"{model} is not on this machine: sizes as without --model (the Trainer fills in auto)")
        return None
