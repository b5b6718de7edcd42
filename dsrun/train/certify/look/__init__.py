"""The checks of `dsrun certify`, several to a module; the order in which they are shown is that of checks.toml."""

from dsrun.certify.checks import CHECK_FACTS
from dsrun.findings.checks import Check
from dsrun.train.certify.look import engine, forward, losses, saved, tokens, weights

_MODULES = (engine, forward, losses, saved, tokens, weights)
_BY_CODE = {each.code: each for module in _MODULES for each in vars(module).values() if isinstance(each, Check)}
CHECKS = tuple(_BY_CODE[code] for code in CHECK_FACTS if code in _BY_CODE)
