"""All rules, in the order in which they are checked."""

from __future__ import annotations

from dsrun.zero.rules.offload import OFFLOAD_RULES, ZENFLOW_RULES, ZEROPP_RULES
from dsrun.zero.rules.parallel import COMPILE_RULES, PARALLEL_RULES
from dsrun.zero.rules.rule import Rule
from dsrun.zero.rules.training import OPTIMIZER_RULES, PRECISION_RULES

RULES: tuple[Rule, ...] = (
    *OFFLOAD_RULES,
    *ZENFLOW_RULES,
    *ZEROPP_RULES,
    *PRECISION_RULES,
    *OPTIMIZER_RULES,
    *PARALLEL_RULES,
    *COMPILE_RULES,
)
