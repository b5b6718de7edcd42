"""The checks of `dsrun certify` by code: their texts, and which trained runs they compare."""

from typing import Any

from dsrun.datafiles import toml_beside

CHECK_FACTS: dict[str, dict[str, Any]] = toml_beside(__file__, "checks.toml")
"""Of each check, by code, in the order in which they are shown."""
