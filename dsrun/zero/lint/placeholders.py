"""Values of a template that nobody has filled in: "<batch size>", {{ lr }}, ${MICRO}, YOUR_TEAM, /path/to/nvme."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from dsrun.findings import Message
from dsrun.zero.lint.codes import Findings
from dsrun.zero.lint.source import dotted
from dsrun.zero.lint.structure import leaves
from dsrun.zero.schema import shown

REPLACE = Message("replace it with a value")
TEXT = re.compile(
    r"<[^<>]+>|\{\{.*\}\}|\$\{?\w+\}?|%\(?\w+\)?[sd]?|\.\.\.|…|__[A-Za-z]\w*__"
    r"|(TODO|FIXME|TBD|XXX+|CHANGE_?ME|REPLACE_?ME)\b.*|(?i:your)[_ -].*|MY_[A-Z_]+|.*\bpath/to/.*",
    re.DOTALL,
)


def is_placeholder(value: Any) -> bool:
    """Whether a value stands for one that is still to be written."""
    return isinstance(value, str) and TEXT.fullmatch(value.strip()) is not None


def name_placeholders(config: dict[str, Any], report: Findings) -> None:
    """Call the placeholders of a config what they are, where an error complains about one; warn of the others."""
    for path, value in leaves(config):
        if not is_placeholder(value):
            continue
        place, wrong = f"{dotted(path)} (", False
        message = Message("{key} is {value}, a placeholder", key=path[-1], value=shown(value))
        for index, (position, finding) in enumerate(report.rows):
            if finding.level == "error" and finding.where.startswith(place):
                report.rows[index] = (position, replace(finding, message=message, fix=REPLACE))
                wrong = True
        if not wrong:
            report.warning("placeholder", path, message, REPLACE)
