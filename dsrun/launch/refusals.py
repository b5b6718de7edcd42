"""What `dsrun launch` refuses, in the words of refusals.toml."""

from dsrun.refusals import Refusals

_TEXTS = Refusals(__file__)
refusal, refuse = _TEXTS.error, _TEXTS.check
