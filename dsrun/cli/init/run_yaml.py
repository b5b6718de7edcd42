"""The answers as a run.yaml with comments, its check, and the commands that follow."""

import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dsrun.cli.init.data import InitData
from dsrun.cli.init.interview import InitAnswer
from dsrun.cli.init.model import InitModel
from dsrun.cli.init.place import TrainingPlace
from dsrun.cli.init.tuning import InitTuning
from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.models.families import family_of
from dsrun.recipe.flags import all_flags
from dsrun.recipe.preflight.files import check_inputs
from dsrun.recipe.resolve import resolve
from dsrun.recipe.trackers import check_packages
from dsrun.slurm.render.options import options
from dsrun.system.process.scratch import scratch_folder
from dsrun.system.terminal.display import printable

WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z./][\w./+-]*|\d+|0\.\d+", re.ASCII)
# Words that YAML 1.1 reads as something else.
_RESERVED = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", ".inf", ".nan"})


class YamlEntry(NamedTuple):
    """A line of run.yaml: why it is so, and, if it is not `active`, one to try, as a comment."""

    key: str
    value: object
    why: str = ""
    active: bool = True


@dataclass(frozen=True, kw_only=True)
class RunYamlAnswers:
    """All that was answered."""

    model: InitModel
    data: InitData
    task: InitAnswer[str]
    place: TrainingPlace
    tuning: InitTuning
    output: InitAnswer[str]
    dataset_config: str | None = None
    chat_template: InitAnswer[str] | None = None


def render_run_yaml(answers: RunYamlAnswers, file: str) -> str:
    """run.yaml. `file` is its name, for the commands at its head."""
    found = sections(answers)
    lines = [
        "# Written by `dsrun init`. Options of the command line win over this file; docs/train.md lists all keys.",
        *(f"#   {line}" for line in command_lines(answers, file)),
        f"# It is for {printable(answers.place.words)}: {answers.place.source}.",
    ]
    for name, entries in found.items():
        lines += ["", f"{name}:"]
        for entry in entries:
            lines += [f"  {line}" for line in _entry_lines(name, entry)]
    return "\n".join(lines) + "\n"


def _entry_lines(section: str, entry: YamlEntry) -> Iterator[str]:
    text = f"{entry.key}: {scalar(entry.value)}"
    if not entry.active:
        yield f"# {text}" + (f"    # {printable(entry.why)}" if entry.why else "")
        return
    for comment in (_help(section, entry.key), f"why: {printable(entry.why)}" if entry.why else ""):
        yield from (f"# {line}" for line in textwrap.wrap(comment, WIDTH, break_on_hyphens=False))
    yield text


def _help(section: str, key: str) -> str:
    if section == "slurm":
        return str(options()[key].metadata["help"])
    return all_flags()["zero" if key == "stage" else key].help


def scalar(value: object) -> str:
    """A value as YAML reads it back, whatever is in it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple | list):
        texts = [scalar(each) for each in value]
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    text = str(value)
    if isinstance(value, int | float) or (_PLAIN.fullmatch(text) and text.lower() not in _RESERVED):
        return text
    return json.dumps(text, ensure_ascii=False)


def sections(answers: RunYamlAnswers) -> dict[str, list[YamlEntry]]:
    """The lines of each section."""
    data, tuning = answers.data, answers.tuning
    more = {
        "family": family_of(answers.model.kind),
        "lora": tuning.lora.value,
        "zero": tuning.zero,
        "with_columns": f"{data.source}; columns: {data.layout.name}" if data.layout else data.source,
    }
    names = SubjectNames(answers, {}, **more)
    found = {
        section: [_entry(row, names) for row in rows if evaluate(row.get("when", "True"), names)]
        for section, rows in toml_beside(__file__, "entries.toml").items()
    }
    if answers.place.slurm is not None:
        job = answers.place.slurm
        found["slurm"] = [YamlEntry(name, answer.value, answer.source) for name, answer in job.items()]
    return found


def _entry(row: Mapping[str, Any], names: Mapping[str, Any]) -> YamlEntry:
    why = row["why"].format_map(names)
    return YamlEntry(row["key"], evaluate(row["value"], names), why, row.get("active", True))


def check_run_file(text: str, name: str, *, slurm: bool) -> tuple[str, ...]:
    """The notices of `dsrun train --config` for this text. Raises what it would raise, and what `dsrun render-slurm`
    would raise for its options."""
    with scratch_folder("dsrun-init-") as folder:
        path = Path(folder, name)
        path.write_text(text, encoding="utf-8")
        recipe = resolve(["--config", name], Path(folder))
        if slurm:
            from dsrun.recipe.runfile import read_section
            from dsrun.slurm.render.spec import make_spec, run_file_value

            make_spec([run_file_value(*entry) for entry in read_section(path, name, "slurm")])
    check_inputs(recipe)
    check_packages(recipe)
    return recipe.notices


def commands(answers: RunYamlAnswers, file: str) -> dict[str, str]:
    """The next commands, each with its meaning."""
    names = {"file": shlex.quote(file), "run": shlex.quote(answers.output.value)}
    found = toml_beside(__file__)["here" if answers.place.slurm is None else "slurm"]
    return {command.format_map(names): meaning for command, meaning in found.items()}


def plan_command(answers: RunYamlAnswers, given: Mapping[str, Any]) -> dict[str, str]:
    """`dsrun plan` for these GPUs, where something was planned."""
    gpus, tuning = answers.place.cluster, answers.tuning
    if gpus is None or tuning.preset is None or answers.model.is_demo or given["zero"]:
        return {}
    words = ["dsrun", "plan", "--model", answers.model.name]
    if answers.place.slurm is not None:
        words += ["--gpus", f"{gpus.name}:{gpus.per_node}", "--gpu-memory", f"{gpus.memory:g}"]
        words += ["--nodes", str(gpus.nodes)] if gpus.nodes > 1 else []
    words += ["--lora", str(tuning.lora.value)] if tuning.lora.value else []
    words += ["--global-batch-size", str(tuning.batch.value)] if tuning.batch else []
    words += ["--preset", tuning.preset.value] if tuning.preset.value != "balanced" else []
    return {shlex.join(words): "what else would fit"}


def command_lines(answers: RunYamlAnswers, file: str) -> list[str]:
    """The next commands as lines, their meanings aligned."""
    found = commands(answers, file)
    width = max(map(len, found))
    return [f"{command:<{width}}  # {meaning}" for command, meaning in found.items()]
