"""The table of docs/models.md, of the recorded verdicts of `dsrun certify`; and the checks of docs/certify.md."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dsrun.certify.checks import CHECK_FACTS
from tools.certify.record import Rows, read_record
from tools.docs import table

MARKS = {"pass": "✓", "fail": "**✕**", "warn": "!", "skip": "", "open": "?", "": "?"}


def checks() -> str:
    """A section for each check: what it finds, the fault in the field that it answers, the flags that avoid it."""
    return "\n\n".join(part for code, facts in CHECK_FACTS.items() for part in _section(code, facts)) + "\n"


def _section(code: str, facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {facts['title'][:1].upper()}{facts['title'][1:]}"
    needs = f" It {facts['needs']}." if facts.get("needs") else ""
    yield f"`{code}` finds {facts['finds']}.{needs}"
    avoid = f" Avoided by `{facts['avoid']}`." if facts.get("avoid") else ""
    yield f"In the field: {facts['field']}{avoid}"


def models() -> str:
    """The table, and below it what fails, why, and what to do."""
    return render(read_record())


def render(found: Rows) -> str:
    codes = list(CHECK_FACTS)
    links = [f"[`{code}`](certify.md#{anchor(facts['title'])})" for code, facts in CHECK_FACTS.items()]
    heads = ["model", "type", *links, "CPU s"]
    rows = [_row(name, found[name], codes) for name in sorted(found)]
    problems = [line for name in sorted(found) for line in _problems(name, found[name])]
    parts = [_measured(found), table(tuple(heads), rows)]
    if problems:
        parts += ["## What fails", table(("model", "check", "what is found", "remedy"), problems)]
    return "\n\n".join(parts) + "\n"


def anchor(title: str) -> str:
    """What GitHub makes of a heading's text."""
    kept = "".join(each for each in title.lower() if each.isalnum() or each in " -_")
    return kept.replace(" ", "-")


def _measured(found: Rows) -> str:
    """With which versions, and when."""
    sets = Counter(
        (tuple(f"{key} {value}" for key, value in each["versions"].items() if key != "dsrun"), each["date"])
        for each in found.values()
    )
    right = sum(all(each["status"] != "fail" for each in entry.get("checks", {"": {"status": "fail"}}).values())
                for entry in found.values())  # fmt: skip
    lines = "; ".join(f"{count} with {', '.join(names)} on {day}" for (names, day), count in sorted(sets.items()))
    return f"{len(found)} models, {right} of which pass every check that applies{': ' * bool(lines)}{lines}."


def _row(name: str, entry: Mapping[str, Any], codes: list[str]) -> tuple[str, ...]:
    results = entry.get("checks", {})
    marks = [MARKS[results.get(code, {}).get("status", "")] for code in codes]
    return name, entry["model_type"], *marks, f"{entry['cpu_seconds']:.0f}" if "cpu_seconds" in entry else ""


def _problems(name: str, entry: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    if "error" in entry:
        yield name, "", f"no verdict: {entry['error']}", ""
    for code, each in entry.get("checks", {}).items():
        remedy = " ".join(f"`{flag}`" for flag in each.get("avoid", ()))
        for found in each.get("findings", ()):
            where = f"{found['where']}: " if found.get("where") else ""
            yield name, f"`{code}`", where + found["message"], remedy or found.get("fix", "")
