"""Two tiny demo models with data made by rule: they train anywhere, without a download."""

from dsrun.demo.build import DEMO_NAMES, DemoPaths, data_only, materialise
from dsrun.demo.models import DEFAULTS

__all__ = ["DEFAULTS", "DEMO_NAMES", "DemoPaths", "data_only", "materialise"]
