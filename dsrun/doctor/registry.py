"""All checks of `dsrun doctor`, in the order of how often they hurt."""

from __future__ import annotations

from dsrun.doctor import run_folder
from dsrun.doctor.check import Check

CHECKS: tuple[Check, ...] = (run_folder.RUN_FOLDER,)
