"""ConfigView: one DeepSpeed configuration as the rules look at it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dsrun.datafiles import toml_beside
from dsrun.zero.schema import FittedValue, Path, blocks, coerce

if TYPE_CHECKING:
    from dsrun.hardware.gpu_facts import GpuModel

ConfigTarget = Literal["trainer", "deepspeed"]
AUTO = "auto"
ZERO = "zero_optimization"

_TABLE = toml_beside(__file__, "filled.toml")
# What the Trainer fills, and from which training argument.
FILLED: Mapping[str, str] = _TABLE["trainer"]
TRAINER_FILLS = frozenset(tuple(key.split(".")) for key in FILLED)
# What accelerate fills, and with what.
CONSTANTS: dict[Path, Any] = {tuple(key.split(".")): value for key, value in _TABLE["constants"].items()}


class Missing:
    """The type of MISSING."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(frozen=True)
class TrainingFlags:
    """Training flags to compare with: the values in force, the names that the user gave, and where each stands."""

    values: dict[str, Any]
    given: frozenset[str] = frozenset()
    places: dict[str, str] = field(default_factory=dict)

    def where(self, name: str) -> str:
        """`--learning_rate`, or `run.yaml:12: train.learning_rate`."""
        return self.places.get(name, f"--{name}")


@dataclass(frozen=True)
class ConfigView:
    """A config, and what is known about the run it is for.

    `target` says who reads it; `is_target_given` whether the user said so. `world_size` is the number of ranks."""

    config: dict[str, Any]
    target: ConfigTarget
    is_target_given: bool = False
    world_size: int | None = None
    flags: TrainingFlags | None = None
    model_type: str | None = None
    gpu: "GpuModel | None" = None

    @property
    def for_trainer(self) -> bool:
        """Whether the Trainer reads it first and fills its "auto"."""
        return self.target == "trainer"

    def raw(self, *path: str | int) -> Any:
        """The value as it stands in the file, or MISSING."""
        value: Any = self.config
        for key in path:
            if not isinstance(value, dict) or key not in value:
                return MISSING
            value = value[key]
        return value

    def has(self, *path: str | int) -> bool:
        return self.raw(*path) is not MISSING

    def is_block(self, dotted: str) -> bool:
        """Whether there is an object at the key, blocks joined by dots."""
        return isinstance(self.raw(*dotted.split(".")), dict)

    def value(self, dotted: str) -> Any:
        """What DeepSpeed takes a key for; None where its block is missing, or where it cannot be known."""
        block, _, key = dotted.rpartition(".")
        if block and not self.is_block(block):
            return None
        if block in blocks() and blocks()[block].style == "model" and key in blocks()[block].keys:
            found = self.taken(block, key)
        else:
            found = self.raw(*dotted.split("."))
        return None if found is MISSING or (found == AUTO and self.for_trainer) else found

    def is_auto(self, *path: str | int) -> bool:
        return bool(self.raw(*path) == AUTO)

    def spelled(self, block: str, key: str) -> Path:
        """The path under which a key of a model stands in the file: by its alias or by its field's name."""
        parent = tuple(block.split("."))
        name = blocks()[block].keys[key].get("name", key)
        return (*parent, name) if not self.has(*parent, key) and self.has(*parent, name) else (*parent, key)

    def taken(self, block: str, key: str) -> Any:
        """What DeepSpeed takes a model's key for: converted, filled by its default, or MISSING when unknowable.

        Unknowable are a value that DeepSpeed refuses and an "auto" that the Trainer fills."""
        path = self.spelled(block, key)
        value, entry = self.raw(*path), blocks()[block].keys[key]
        if value == AUTO and isinstance(value, str):
            if self.for_trainer:
                return CONSTANTS.get(path, MISSING)
            value = MISSING
        if value is MISSING:
            return entry.get("default")
        found: FittedValue = coerce(value, entry)
        return MISSING if found.coerce == "refused" else found.value

    @property
    def stage(self) -> int | None:
        """The ZeRO stage, None when it cannot be known."""
        zero = self.raw(ZERO)
        if isinstance(zero, bool):  # the oldest way of all to ask for stage 1
            return int(zero)
        if zero is not MISSING and not isinstance(zero, dict):
            return None
        stage = self.taken(ZERO, "stage")
        return None if stage is MISSING else int(stage)

    def offload(self, what: str) -> str | None:
        """The device of offload_optimizer or offload_param: none, cpu, nvme, or None when it cannot be known."""
        legacy = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}[what]
        if self.taken(ZERO, legacy) is True:
            return "cpu"
        block = self.raw(ZERO, what)
        if block is MISSING or block is None or block == AUTO:
            return "none"
        device = self.taken(f"{ZERO}.{what}", "device") if isinstance(block, dict) else MISSING
        return None if device is MISSING else str(device)

    def precision(self, name: str) -> bool | None:
        """Whether fp16 or bf16 is on; None when the Trainer decides or it cannot be known."""
        block = name
        if name == "bf16" and self.raw("bf16") in (MISSING, None) and not self.for_trainer:
            block = "bfloat16"
        if not isinstance(self.raw(block), dict):
            return False
        enabled = self.taken(block, "enabled")
        return None if enabled is MISSING else bool(enabled)


def find_target(config: Any, requested: ConfigTarget | None) -> ConfigTarget:
    """Who a config is for: who the user says, else the Trainer if there is an "auto" that only it fills."""
    if requested is not None:
        return requested
    view = ConfigView(config if isinstance(config, dict) else {}, "trainer")
    return "trainer" if any(view.is_auto(*path) for path in TRAINER_FILLS) else "deepspeed"
