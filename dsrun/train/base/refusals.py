"""What `dsrun train` and `dsrun export` refuse, in the words of refusals.toml.

`raise refusal("long_context.ranks", given=3, ranks=4)` fills the texts of one row; `refuse("convert", …)` looks for the
first row of a group that holds, by its `when`.
"""

from dsrun.refusals import Refusals

_TEXTS = Refusals(__file__)
refusal, refuse = _TEXTS.error, _TEXTS.check
