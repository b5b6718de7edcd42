"""What `dsrun train` and `dsrun export` refuse, in the words of refusals.toml, and what they note, in notices.toml.

`raise refusal("model.no_layers", kind="T5Model")` fills the texts of one row; `refuse("convert", …)` looks for the
first row of a group that holds, by its `when`."""

from typing import Any

from dsrun.datafiles import evaluate, toml_beside
from dsrun.refusals import Refusals

_TEXTS = Refusals(__file__)
refusal, refuse = _TEXTS.error, _TEXTS.check


def notice_of(key: str, /, **names: Any) -> str:
    """The text `group.name` of notices.toml, filled with the names."""
    group, _, name = key.partition(".")
    return str(notices(group)[name].format_map(names))


def reason_of(group: str, /, **names: Any) -> str | None:
    """The text of the first row of a group of reasons.toml that holds, filled with the names; None where none does."""
    rows = toml_beside(__file__, "reasons.toml")[group]
    return next((row["text"].format_map(names) for row in rows if evaluate(row["when"], names)), None)


def notices(group: str) -> dict[str, str]:
    """The texts of a group, to be filled, in their order."""
    return dict(toml_beside(__file__, "notices.toml")[group])
