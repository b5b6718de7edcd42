"""Packages that only some flags need, looked for before a job starts."""

from importlib.util import find_spec

from dsrun.errors import MissingError, UsageError, did_you_mean
from dsrun.recipe.recipe import Recipe
from dsrun.recipe.trackers import KNOWN, PACKAGES, trackers

OF_FLAGS = {"quantization": "bitsandbytes", "fp8": "torchao"}
"""By flag; those that the training libraries bring along are not here."""
MODELSCOPE = ("modelscope_hub", "pip install 'dsrun[modelscope]'")
"""The module for --hub modelscope, and how it is installed."""


def check_packages(recipe: Recipe) -> None:
    """Raise UsageError for an unknown tracker, and MissingError for what is not installed."""
    for name in trackers(recipe):
        if name not in KNOWN:
            what = f"--report-to {name}: there is no such tracker"
            raise UsageError(what, fix=did_you_mean(name, KNOWN, f"choose from {', '.join(sorted(KNOWN))}"))
        _require(f"--report-to {name}", name if name in PACKAGES else None)
    for flag, package in OF_FLAGS.items():
        if recipe.value(flag):
            _require(recipe.where(flag), package)
    if recipe.spec.hub == "modelscope":
        _require(f"{recipe.where('hub')} modelscope", *MODELSCOPE)


def _require(flag: str, package: str | None, fix: str | None = None) -> None:
    if package and find_spec(package) is None:
        raise MissingError(f"{flag} needs the package {package}", fix=fix or f"pip install {package}")
