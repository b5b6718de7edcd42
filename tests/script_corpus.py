"""Sbatch scripts that are healthy, or have one fault, with what is known of each."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "slurm_scripts"


@dataclass(frozen=True, kw_only=True)
class LabelledScript:
    """A script; those without a `code` are healthy. The head of labels.toml says what the rest means."""

    name: str
    text: str
    code: str | None = None
    line: int = 0
    or_lines: tuple[int, ...] = ()
    what: str = ""
    runs: bool = True
    reason: str = ""
    training_fails: bool = False
    worlds: int = 1
    mended: tuple[tuple[int, tuple[str, ...]], ...] = field(default=(), repr=False)

    @property
    def mended_text(self) -> str:
        """The script without its fault."""
        lines = [[line] for line in self.text.split("\n")]
        for number, instead in self.mended:
            lines[number - 1] = list(instead)
        return "\n".join(line for group in lines for line in group)


def labelled_scripts() -> list[LabelledScript]:
    """All of them, in the order of their names. Raises KeyError for a label without script, or the reverse."""
    labels = tomllib.loads((FOLDER / "labels.toml").read_text())
    scripts = []
    for path in sorted(FOLDER.glob("*/*.sh"), key=lambda path: path.stem):
        label = labels.pop(path.stem) if path.parent.name == "broken" else labels.pop(path.stem, {})
        label["mended"] = tuple((number, tuple(lines)) for number, lines in label.get("mended", []))
        label["or_lines"] = tuple(label.get("or_lines", []))
        scripts.append(LabelledScript(name=path.stem, text=path.read_text(), **label))
    if labels:
        raise KeyError(f"no script for {', '.join(labels)}")
    return scripts


SCRIPTS = labelled_scripts()
BROKEN = [script for script in SCRIPTS if script.code]
HEALTHY = [script for script in SCRIPTS if not script.code]
