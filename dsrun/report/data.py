"""What a report says of one run: its state, figures, settings, evaluations, texts, findings and checkpoints."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dsrun.checkpoints import CheckpointEntry, entries
from dsrun.datafiles import evaluate, toml_beside
from dsrun.diagnosis.diagnose import NO_END, NONE, RunVerdict
from dsrun.diagnosis.run_diagnosis import of_run
from dsrun.errors import UsageError
from dsrun.findings.finding import Finding
from dsrun.monitoring.run_status import RunStatus, status_json, status_of
from dsrun.report.panels import shown_text
from dsrun.runs.folder import RunFolder
from dsrun.runs.goodput import Goodput
from dsrun.runs.reader import DEFAULT, RunHistory, metric_keys, read_history
from dsrun.runs.records import iter_records, mapping, plain, whole
from dsrun.system.terminal.secrets import masked, masked_values, without_tokens

MOST_PREDICTIONS = 12
"""Of each predictions file, so many rows are shown."""
MOST_PROMPTS = 12
_MOST_STEPS = 8
_LONGEST_TEXT = 1500


@dataclass(frozen=True, kw_only=True)
class ResolvedSetting:
    """A resolved setting and its source: the command line, a file, or "default"."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, kw_only=True)
class ModelSample:
    """What the model wrote to a prompt at each step, or one row of its predictions with the reference."""

    prompt: str
    texts: tuple[tuple[int, str], ...]
    reference: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """One run. `verdict` tells why it stopped, None where it did not; `findings` are about its DeepSpeed configuration.

    No value holds an access token, and texts are cut at 1,500 characters."""

    name: str
    history: RunHistory
    status: RunStatus
    verdict: RunVerdict | None
    findings: tuple[Finding, ...]
    checkpoints: tuple[CheckpointEntry, ...]
    settings: tuple[ResolvedSetting, ...]
    environment: tuple[tuple[str, str], ...]
    prompts: tuple[ModelSample, ...]
    predictions: tuple[tuple[str, tuple[ModelSample, ...]], ...]

    @property
    def goodput(self) -> Goodput | None:
        """What its time was used for."""
        return self.status.time

    @property
    def metrics(self) -> list[str]:
        """The keys of its evaluations' metrics."""
        return metric_keys(self.history.evaluations)

    def as_dict(self) -> dict[str, Any]:
        """The run for JSON: what is not finite is null, and named under "nonfinite"."""
        events = [plain(event) for event in self.history.events]
        return {
            "name": self.name,
            "path": str(self.history.path),
            "status": status_json(self.status),
            "goodput": self.goodput.as_dict() if self.goodput else None,
            "verdict": self.verdict.as_dict() if self.verdict else None,
            "findings": [finding.as_dict() for finding in self.findings],
            "settings": [asdict(setting) for setting in self.settings],
            "environment": dict(self.environment),
            "evaluations": [plain(record) for record in self.history.evaluations],
            "events": events,
            "nodes": [plain(asdict(node)) for node in self.history.present_nodes],
            "checkpoints": [plain(asdict(entry)) for entry in self.checkpoints],
            "prompts": [asdict(sample) for sample in self.prompts],
            "predictions": {file: [asdict(row) for row in rows] for file, rows in self.predictions},
        }


def read_run(path: Path, name: str) -> RunReport:
    """The report of the run in folder `path`. Raises UsageError where it is not a run folder."""
    history = read_history(path)
    status = status_of(history)
    return RunReport(
        name=shown_text(name),
        history=history,
        status=status,
        verdict=_verdict(history, status),
        findings=_config_findings(history),
        checkpoints=tuple(entries(RunFolder(path))),
        settings=_settings(history),
        environment=_environment(history, status),
        prompts=_prompts(path),
        predictions=tuple(
            (file.name, rows) for file in sorted(path.glob("predictions-*.jsonl")) if (rows := _rows(file))
        ),
    )


def shown_value(value: object) -> str:
    """A setting for people."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, str):
        return without_tokens(value)
    if isinstance(value, list) and not any(isinstance(each, (dict, list)) for each in value):
        return ", ".join(shown_value(each) for each in value) or "none"
    return without_tokens(json.dumps(value, ensure_ascii=False))


def _verdict(history: RunHistory, status: RunStatus) -> RunVerdict | None:
    if not status.is_over or status.state == "finished":
        return None
    try:
        verdict = of_run(history.path, history)
    except UsageError:
        return None  # neither events nor logs
    return None if verdict.cause.code in (NONE, NO_END) else verdict


def _config_findings(history: RunHistory) -> tuple[Finding, ...]:
    """Errors and warnings of `dsrun config check` about the configuration that DeepSpeed got."""
    from dsrun.zero.lint.config_check import check

    if (config := deepspeed_json(history)) is None:
        return ()
    model_type = history.run.get("model_type")
    found = check(
        config,
        file="the configuration below",
        target="trainer",
        world_size=whole(history.run.get("world_size")),
        model_type=model_type if isinstance(model_type, str) else None,
    )
    return tuple(finding for finding in found if finding.level != "info")


def deepspeed_json(history: RunHistory) -> str | None:
    """The configuration that DeepSpeed got, indented; None where there is none."""
    config = history.run.get("deepspeed")
    return json.dumps(masked_values(config), indent=2, ensure_ascii=False) if isinstance(config, dict) else None


def _settings(history: RunHistory) -> tuple[ResolvedSetting, ...]:
    """The settings, those that were given first."""
    sources = history.sources
    rows = [
        ResolvedSetting(
            name=str(name), value=shown_value(value), source=without_tokens(str(sources.get(name, DEFAULT)))
        )
        for name, value in masked_values(dict(history.settings)).items()
    ]
    return tuple(sorted(rows, key=lambda row: row.source == DEFAULT))


def _environment(history: RunHistory, status: RunStatus) -> tuple[tuple[str, str], ...]:
    run, command, gpus = history.run, history.run.get("command"), history.run.get("gpus")
    names = list(map(str, gpus)) if isinstance(gpus, list) else []
    known: dict[str, Any] = {
        "run": run,
        "status": status,
        "folder": history.path.absolute(),
        "command": " ".join(masked(map(str, command))) if isinstance(command, list) else None,
        "gpus": ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)),
        "parameters": whole(run.get("parameters")),
        **{name: mapping(run.get(name)) for name in ("batch", "packing", "versions")},
    }
    rows = {name: evaluate(value, known) for name, value in toml_beside(__file__, "environment.toml").items()}
    found = [*rows.items(), *((str(package), version) for package, version in known["versions"].items())]
    return tuple((name, without_tokens(str(value))) for name, value in found if value not in (None, ""))


def _prompts(path: Path) -> tuple[ModelSample, ...]:
    texts: dict[str, dict[int, str]] = {}
    with suppress(OSError):
        for record in iter_records(path / "samples.jsonl"):
            step = whole(record.get("step"))
            if step is not None and "prompt" in record:
                texts.setdefault(_text(record["prompt"]), {})[step] = _text(record.get("text"))
    return tuple(
        ModelSample(prompt=prompt, texts=_spread(sorted(by_step.items())))
        for prompt, by_step in islice(texts.items(), MOST_PROMPTS)
    )


def _spread(texts: list[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    """Some of the texts at about equal distances, with the last one."""
    stride = -(-len(texts) // _MOST_STEPS)
    return tuple(reversed(texts[::-1][::stride]))


def _rows(file: Path) -> tuple[ModelSample, ...]:
    try:
        return tuple(
            ModelSample(
                prompt=_text(row.get("source", row.get("prompt", ""))),
                texts=((0, _text(row["prediction"])),),
                reference=_text(row["reference"]) if "reference" in row else None,
            )
            for row in islice(iter_records(file), MOST_PREDICTIONS)
            if "prediction" in row
        )
    except OSError:
        return ()


def _text(value: object) -> str:
    text = without_tokens(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + " …"
