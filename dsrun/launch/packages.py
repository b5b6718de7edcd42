"""Whether the packages of the `train` extra are there, found out without importing them."""

from __future__ import annotations

from importlib.util import find_spec

from dsrun.errors import MissingError

NEEDED = ("torch", "transformers", "deepspeed", "datasets", "accelerate", "peft")


def require_training_packages() -> None:
    """Raise MissingError unless this Python can train; a login node need not."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingError(f"training needs {', '.join(missing)}", fix="pip install 'dsrun[train]'")
