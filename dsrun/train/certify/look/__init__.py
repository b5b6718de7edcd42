"""The checks of `dsrun certify`, several to a module: each is the function that has its code as its name."""

from dsrun.certify.checks import CHECK_FACTS
from dsrun.findings.checks import Check
from dsrun.train.certify.look import forward, losses, tokens, weights

_LOOKS = {name: each for module in (forward, losses, tokens, weights) for name, each in vars(module).items()}
CHECKS = tuple(
    Check(code, facts["title"], _LOOKS[code], needs=facts.get("needs", ""), finds=facts.get("finds", ""))
    for code, facts in CHECK_FACTS.items()
)
