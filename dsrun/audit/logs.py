"""What the logs of a run tell: values and signs by the names of log.toml, the last steps, and causes."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ahocorasick_rs

from dsrun.datafiles import patterns_beside
from dsrun.diagnosis.diagnose import of_logs
from dsrun.diagnosis.log.reading import read_log
from dsrun.errors import DsrunError, UsageError
from dsrun.monitoring.trainer_logs.status import LogReader

LOG_PATTERNS = patterns_beside(__file__, "log.toml", flags=re.MULTILINE)
"""What is looked for in logs, by name: the value of the last one with a group, and whether one without is there."""
# What a pattern begins with: letters and escaped signs, but not one that may come repeatedly.
_LITERAL = re.compile(r"(?:(?:[^\\\[\](){}.*+?^$|]|\\\W)(?![*+?{]))+")
_WORDS = {name: re.sub(r"\\(\W)", r"\1", _LITERAL.match(each.pattern)[0]) for name, each in LOG_PATTERNS.items()}  # type: ignore[index]
_WINDOW, _LISTS = 400, 1 << 17
"""Bytes from its first words in which a pattern ends, and one that reads the names of weights."""
_CAUSES = 4 << 20
_STEPS = 1 << 18
"""Bytes at the end of a log in which causes and steps are looked for: what ended a run, and the last thousand steps."""


class LogEvidence(NamedTuple):
    """`facts` by name, the logged `steps` of the first log that has some, and the `causes` that `dsrun diagnose` finds,
    None where no log was read."""

    facts: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    causes: frozenset[str] | None


def read_logs(logs: Sequence[Path], *, strict: bool) -> LogEvidence:
    """What `logs` tell. One that cannot be read, is no text or empty, raises UsageError or MissingError where `strict`,
    and else tells nothing."""
    facts: dict[str, Any] = {}
    ends: dict[str, bytes] = {}
    for log in logs:
        with suppress(*(() if strict else (DsrunError,))):
            ends[str(log)] = _read(log, facts)
    if not ends:
        return LogEvidence({}, (), None)
    signs = {name: False for name, pattern in LOG_PATTERNS.items() if not pattern.groups}
    causes = frozenset(each.code for each in of_logs(ends).findings)
    steps = (_steps(Path(name), end[-_STEPS:]) for name, end in ends.items())
    return LogEvidence(signs | facts, next(filter(None, steps), ()), causes)


def _read(log: Path, facts: dict[str, Any]) -> bytes:
    """The end of a log, of which `facts` are told."""
    end = b""
    for data, limit in read_log(log, str(log)):
        end = (end + data[:limit])[-_CAUSES:]
        # What is there need not be looked for again.
        open_names = tuple(name for name in LOG_PATTERNS if facts.get(name) is not True)
        for index, begin, _ in _automaton(open_names).find_matches_as_indexes(data, overlapping=True):
            name = open_names[index]
            if begin < limit and facts.get(name) is not True:
                window = _LISTS if name.startswith("missing") else _WINDOW
                text = data[begin : begin + window].decode(errors="replace")
                if found := LOG_PATTERNS[name].match(text):
                    facts[name] = (int(found[1]) if found[1].isdigit() else found[1]) if found.re.groups else True
    if not end.strip():
        raise UsageError(f"{log} is empty", fix="give the log of a run")
    return end


@cache
def _automaton(names: tuple[str, ...]) -> Any:
    return ahocorasick_rs.BytesAhoCorasick([_WORDS[name].encode() for name in names])


def _steps(log: Path, end: bytes) -> Sequence[Mapping[str, Any]]:
    reader = LogReader(log)
    reader.feed(end, now=None)
    reader.end()
    return [each for each in reader.log.steps if "loss" in each]
