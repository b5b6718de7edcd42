"""The settings of a model's config.json, checked as they are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsrun.errors import UsageError

MOST_LAYERS = 10_000
"""Ten times the deepest transformer; layers are counted one by one."""
LARGEST_SIDE = 10**8
"""No width or vocabulary comes near it; a larger number is a typo."""


@dataclass(frozen=True, eq=False)
class ModelSettings:
    """A config's settings by name, with the names' defaults in transformers given by the caller."""

    config: Mapping[str, Any]

    def number(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first of `names` that the config sets, as a whole number of at least `least`.

        Raises UsageError when it is none, or missing without a default.
        """
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            most = MOST_LAYERS if "layer" in name else LARGEST_SIDE
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise UsageError(f"config.json: {name} {value!r} is not a number from {least} to {most:,}")
            return value
        if default is None:
            raise UsageError(f"config.json has no {names[0]}")
        return default

    def optional(self, *names: str) -> int | None:
        """Like `number`, but None where the config sets none of them."""
        return self.number(*names) if any(self.config.get(name) is not None for name in names) else None

    def numbers(self, name: str) -> tuple[int, ...]:
        """A setting that is a list of whole numbers; none where it is not set."""
        value = self.config.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            raise UsageError(f"config.json: {name} {value!r} is not a list of whole numbers")
        return tuple(value)

    def switch(self, name: str, default: bool) -> bool:
        value = self.config.get(name)
        return default if value is None else bool(value)

    def word(self, name: str, default: str) -> str:
        value = self.config.get(name)
        return default if value is None else str(value)

    def share(self, *names: str, default: float) -> float:
        """A probability: the first of `names` that the config sets."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise UsageError(f"config.json: {name} {value!r} is not a probability")
            return float(value)
        return default
