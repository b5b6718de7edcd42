"""How often `dsrun diagnose` is right: `python -m bench diagnose --accuracy [FOLDER]`, else over tests/data/causes.

FOLDER holds logs and a labels.toml with a table for each:

    ["a.txt"]
    causes = ["cuda_oom", "host_oom_killed"]  # the best code first; the others are acceptable
    line = "torch.OutOfMemoryError: CUDA"     # a part of the line that decides
    healthy = true                            # of a log without a failure, in place of the two

Coverage is how many failures get a cause at all, precision how many of those causes are right.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsrun.diagnosis.diagnose import RunVerdict, of_logs
from dsrun.diagnosis.rules import causes
from dsrun.errors import DsrunError

CORPUS = Path(__file__).parents[1] / "tests" / "data" / "causes"
# Of all failures, but the last, which is of healthy logs: (at least, at most) in percent.
GOALS = {
    "right": (80, 100), "acceptable": (0, 100), "right line only": (0, 100), "right or right line": (97, 100),
    "unknown, another line": (0, 100), "wrong": (0, 2), "no end": (0, 100), "none": (0, 0), "healthy right": (97, 100),
}  # fmt: skip
LINE = "{:22} {:>5} {:>7}  {}"
# What names no cause.
UNNAMED = ("unknown", "no_end", "none")


@dataclass(frozen=True)
class Label:
    """What a log is known to show."""

    causes: tuple[str, ...] = ()
    line: str = ""
    healthy: bool = False


def main(arguments: list[str]) -> int:
    """Print the figures and what is not right; 1 where a goal is missed, 2 for a folder without labels."""
    folder = Path(arguments[0]) if arguments else CORPUS
    try:
        labels = labels_of(folder)
        verdicts = {name: of_logs({name: folder / name}) for name in labels}
    except (OSError, ValueError, TypeError, KeyError, DsrunError) as error:
        print(f"error: {folder}: {error}", file=sys.stderr)
        return 2
    judged = {name: judge(verdicts[name], label) for name, label in labels.items()}
    held = _print_figures(judged, verdicts)
    for name, kind in sorted(judged.items(), key=lambda each: (each[1], each[0])):
        if kind not in ("right", "acceptable", "healthy right"):
            verdict, wanted = verdicts[name], " or ".join(labels[name].causes) or "none"
            print(f"{kind:22} {name}: {verdict.cause.code}, not {wanted}: {verdict.evidence[:100]}")
    return 0 if held else 1


def labels_of(folder: Path) -> dict[str, Label]:
    """The labels of a folder's logs: of labels.toml, else by sub-folders called like causes, with two files."""
    given = folder / "labels.toml"
    if given.is_file():
        rows = tomllib.loads(given.read_text(encoding="utf-8"))
        return {name: _label(row) for name, row in rows.items()}
    lines, also = (
        tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        for file in (folder / "lines.toml", folder / "also.toml")
    )
    names = sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*.txt"))
    codes = {name: code for name in names if (code := name.partition("/")[0]) in causes()}
    if not codes:
        raise ValueError("there is neither a labels.toml nor CAUSE/LOG.txt")
    return {
        name: Label((code, *also.get(name, ())), lines.get(name, ""), code in ("none", "no_end"))
        for name, code in codes.items()
    }


def _label(row: Mapping[str, object]) -> Label:
    codes = row.get("causes", [])
    healthy = bool(row.get("healthy", False))
    if not isinstance(codes, list) or not (codes or healthy):
        raise ValueError("a label needs causes, or healthy = true")
    return Label(tuple(map(str, codes)), str(row.get("line", "")), healthy)


def judge(verdict: RunVerdict, label: Label) -> str:
    """What a verdict is worth: a row of GOALS, or "healthy wrong"."""
    code = verdict.cause.code
    if label.healthy:
        return "healthy right" if code in label.causes or not verdict.failed else "healthy wrong"
    if code in label.causes:
        return "right" if code == label.causes[0] else "acceptable"
    if code not in UNNAMED:
        return "wrong"
    texts = [verdict.evidence, *(each.text for each in verdict.excerpt)]
    if label.line and any(label.line in text for text in texts):
        return "right line only"
    return {"unknown": "unknown, another line", "no_end": "no end"}.get(code, "none")


def _print_figures(judged: Mapping[str, str], verdicts: Mapping[str, RunVerdict]) -> bool:
    """Print the shares of each kind, coverage and precision; whether the goals are met."""
    counts = Counter(judged.values())
    counts["right or right line"] = counts["right"] + counts["acceptable"] + counts["right line only"]
    healthy = counts["healthy right"] + counts["healthy wrong"]
    failures = len(judged) - healthy
    held = True
    print(f"{failures} failures, {healthy} healthy logs")
    print(LINE.format("", "logs", "share", "goal"))
    for kind, (least, most) in GOALS.items():
        of = healthy if kind == "healthy right" else failures
        share = 100 * counts[kind] / of if of else 100.0 * bool(least)
        goal = f"at least {least}%" if least else f"at most {most}%" if most < 100 else ""
        met = least <= share <= most
        held &= met
        print(LINE.format(kind, counts[kind], f"{share:.1f}%", goal + (": met" if met else ": MISSED") * bool(goal)))
    fails = [name for name, kind in judged.items() if not kind.startswith("healthy")]
    named = [name for name in fails if verdicts[name].cause.code not in UNNAMED]
    correct = sum(judged[name] in ("right", "acceptable") for name in named)
    for what, part, of in (("coverage", len(named), failures), ("precision", correct, len(named))):
        print(LINE.format(what, f"{part}", f"{100 * part / of:.1f}%" if of else "-", f"of {of}"))
    return held


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
