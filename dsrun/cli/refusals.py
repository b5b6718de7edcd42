"""What commands refuse, in the words of refusals.toml beside this module."""

from dsrun.refusals import Refusals

refusal = Refusals(__file__).error
