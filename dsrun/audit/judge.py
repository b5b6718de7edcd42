"""The facts of facts.toml held against a run: affected, not affected, or cannot tell and what to look at."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, Literal, NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from dsrun.audit.evidence import LOG_PATTERNS, at
from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.findings.checks import Check, CheckResult
from dsrun.findings.finding import Finding, finding_of, text_of
from dsrun.messages import Message, joined
from dsrun.models.families import family_of
from dsrun.system import host

AuditAnswer = Literal["affected", "not affected", "cannot tell"]
_ANSWERS: Mapping[str, AuditAnswer] = {"fail": "affected", "warn": "affected", "open": "cannot tell"}
_FILE = toml_beside(__file__, "facts.toml")
_STRANGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What expressions raise where a name is unknown, or another program's file has a value that nobody expects."""


class FactTruth(NamedTuple):
    """Whether a condition holds, None: unknown, and the names that it is so by."""

    holds: bool | None
    names: tuple[str, ...]


@cache
def audit_facts() -> Mapping[str, Mapping[str, Any]]:
    """The facts by code, in the order in which they are shown; facts.toml explains their fields."""
    return {code: {"applies": "True", "unsure": "False", **_with_known(row)} for code, row in _FILE["facts"].items()}


def _with_known(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with what it takes from dsrun/system/known_bad.toml."""
    if "known" not in row:
        return row
    known = toml_beside(host.__file__, "known_bad.toml")[row["known"]]
    versions = [f"within({name}, {text!r})" for name, text in known["packages"].items()]
    when = " and ".join([*versions, f"({row.get('when', 'True')})"])
    return {**known, **row, "when": when, "applies": f"stage == {known['stage']} and ({row.get('applies', 'True')})"}


class FactNames(dict[str, Any]):
    """The names of conditions about one run."""

    def __init__(self, evidence: Mapping[str, Any]) -> None:
        super().__init__(within=_within, overflows=lambda name: family_of(name).overflows_in_fp16, len=len)
        self._raw = SubjectNames(None, {}, **evidence, at=at, first=_first, bool=bool, len=len)

    def __missing__(self, name: str) -> Any:
        if name not in _FILE["names"] and name not in LOG_PATTERNS:
            raise KeyError(name)  # min, max
        if (value := self.known(name)) is None:
            raise LookupError(name)
        return self.setdefault(name, value)

    def known(self, name: str) -> Any:
        """The value of a name; None where the evidence does not tell it."""
        value = _FILE["names"].get(name, {}).get("value", f"log.get({name!r})")
        with suppress(*_STRANGE):
            return evaluate(value, self._raw)
        return None

    def truth(self, condition: str) -> FactTruth:
        return self._truth(ast.parse(condition, mode="eval").body)

    def _truth(self, node: ast.expr) -> FactTruth:
        """Kleene's logic: an unknown name leaves unknown only what depends on it."""
        if isinstance(node, ast.Name) and node.id in _FILE["terms"]:
            return self.truth(_FILE["terms"][node.id])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            holds, names = self._truth(node.operand)
            return FactTruth(None if holds is None else not holds, names)
        if isinstance(node, ast.BoolOp):
            decides = isinstance(node.op, ast.Or)
            parts = [self._truth(each) for each in node.values]
            by = [each for each in parts if each.holds is decides][:1] or [each for each in parts if each.holds is None]
            names = tuple(dict.fromkeys(name for each in by or parts for name in each.names))
            return FactTruth(by[0].holds if by else not decides, names)
        used = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
        names = tuple(name for name in used if name in _FILE["names"] or name in LOG_PATTERNS)
        try:
            return FactTruth(bool(evaluate(ast.unparse(node), self)), names)
        except _STRANGE:
            return FactTruth(None, tuple(name for name in names if self.known(name) is None) or names)


def _within(version: str, specifiers: str) -> bool:
    return Version(version) in SpecifierSet(specifiers, prereleases=True)


def _first(*values: Any) -> Any:
    return next((each for each in values if each is not None), None)


def audited(evidence: Mapping[str, Any]) -> tuple[CheckResult, ...]:
    """The answer to each fact, in their order; one that is no question for this run is skipped."""
    names = FactNames(evidence)
    return tuple(_result(code, fact, names) for code, fact in audit_facts().items())


def answers(results: Iterable[CheckResult]) -> dict[str, AuditAnswer]:
    """The answers by the codes of facts."""
    return {each.check.code: _ANSWERS.get(each.status, "not affected") for each in results}


def folded(results: Iterable[CheckResult]) -> list[CheckResult]:
    """The results, and at their end one for all facts of which the same record is the first to look at."""
    rows: list[CheckResult] = []
    same: dict[str, list[CheckResult]] = {}
    for each in results:
        message = str(each.findings[0].message) if each.status == "open" else ""
        # As `_findings` puts it together; a fact that names its own source stays alone.
        look = next((text for text in _FILE["looks"].values() if text in message), message)
        (same.setdefault(look, []) if look else rows).append(each)
    return rows + [group[0] if len(group) == 1 else _together(look, group) for look, group in same.items()]


def _together(look: str, group: Sequence[CheckResult]) -> CheckResult:
    title = text_of("open.facts", number=len(group))
    facts = joined(", ", (Message(each.check.title) for each in group))
    found = finding_of("open.folded", prefix=f"{group[0].check.code}_", facts=facts, look=Message(look))
    return replace(group[0], check=replace(group[0].check, title=title), findings=(found,))


def _result(code: str, fact: Mapping[str, Any], names: FactNames) -> CheckResult:
    applies = names.truth(fact["applies"])
    findings = () if applies.holds is False else tuple(_findings(code, fact, names))
    check = Check(code=code, title=fact["title"], look=lambda *_: findings, needs=_shown(applies, names))
    return CheckResult(check=check, findings=findings, seconds=0.0)


def _findings(code: str, fact: Mapping[str, Any], names: FactNames) -> Iterator[Finding]:
    truth = names.truth(f"({fact['applies']}) and ({fact['when']})")
    if truth.holds is None:
        asked = {_FILE["names"].get(name, {}).get("look", "log") for name in truth.names}
        looks = joined("; ", (Message(text) for look, text in _FILE["looks"].items() if look in asked))
        yield finding_of("open.look", prefix=f"{code}_", look=looks)
    elif not truth.holds:
        yield finding_of("clear", prefix=f"{code}_", why=_shown(truth, names) or text_of("clear.nothing"))
    elif names.truth(fact["unsure"]).holds is not False:
        if "look" in fact:
            yield finding_of("open.look", prefix=f"{code}_", look=Message(fact["look"]))
        else:
            yield finding_of("open.source", prefix=f"{code}_", source=fact["source"])
    else:
        values = {name: each for name in _FILE["names"] if (each := names.known(name)) is not None}
        fix = text_of("versions.source", fix=Message(fact["fix"]), source=fact["source"])
        yield Finding(level=fact["level"], code=code, message=Message(fact["message"], **values), fix=fix)


def _shown(truth: FactTruth, names: FactNames) -> str:
    """The names by which a condition does not hold, with their values; of lists, how many there are."""
    titles = {_FILE["names"].get(name, {}).get("title"): names.known(name) for name in truth.names}
    values = {title: len(each) if isinstance(each, list) else each for title, each in titles.items() if title}
    return ", ".join(f"{title} {value}" for title, value in values.items())
