"""Recorded verdicts of `dsrun certify`: which model, with which packages, and what each check found.

They lie in dsrun's cache, by config and type of model, versions and task; one of --quick beside one of all checks."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from dsrun.certify.checks import CHECK_FACTS
from dsrun.certify.request import CertifyRequest
from dsrun.datafiles import toml_beside
from dsrun.findings.checks import Check, CheckResult, as_json
from dsrun.findings.finding import Finding, text_of
from dsrun.messages import Message
from dsrun.runs.records import utc_now, write_json_atomic
from dsrun.system.files import parse_json
from dsrun.system.host import versions
from dsrun.system.variables import cache_root

FACTS = toml_beside(__file__)
_BROKEN = ("_crashed", "_hangs")


def config_hash(config: Mapping[str, Any]) -> str:
    """The SHA-256 of what in a config.json makes the model."""
    return sha256(json.dumps(_of_the_model(config), sort_keys=True).encode()).hexdigest()


def _of_the_model(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _of_the_model(value[key]) for key in value.keys() - set(FACTS["beside_the_model"])}
    return [_of_the_model(each) for each in value] if isinstance(value, list) else value


class CertifyVerdict(NamedTuple):
    """`about` has the `keys` of verdict.toml: what was asked for, of which model, and with which packages. `rows` are
    the `results` as JSON, each with the flags of `dsrun train` that avoid what failed, if any do."""

    about: dict[str, Any]
    rows: tuple[dict[str, Any], ...]
    results: tuple[CheckResult, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**self.about, **as_json(self.results), "checks": list(self.rows), "avoid": list(self.avoid)}

    @property
    def of_architecture(self) -> "CertifyVerdict":
        """What also holds for other copies of the model, with other files."""
        return self._replace(
            rows=tuple(row for row in self.rows if not CHECK_FACTS.get(row["check"], {}).get("of_files"))
        )

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["status"] == "fail"]

    @property
    def avoid(self) -> tuple[str, ...]:
        """The flags that avoid what failed, each once."""
        return tuple(dict.fromkeys(flag for row in self.failed for flag in row["avoid"]))

    @property
    def remaining(self) -> list[str]:
        """The codes of what no flag avoids: a row has a flag for each of its errors that one avoids."""
        levels = {row["check"]: [each["level"] for each in row["findings"]] for row in self.failed}
        return [row["check"] for row in self.failed if len(row["avoid"]) < levels[row["check"]].count("error")]

    @property
    def undecided(self) -> list[str]:
        """The codes of checks that crashed, or did not end in time."""
        return [row["check"] for row in self.rows if row["findings"] and row["findings"][0]["code"].endswith(_BROKEN)]

    @property
    def sentence(self) -> Message:
        """What it comes to, in one line."""
        codes = ", ".join(self.remaining or self.undecided)
        kind = "fails" if self.remaining else "avoid" if self.avoid else "partly" if codes else "yes"
        kind = "quick" if kind == "yes" and self.about["quick"] else kind
        return text_of(f"certified.{kind}", flags=" ".join(self.avoid), codes=codes, **self.about["versions"])


def verdict_of(config: Mapping[str, Any], request: CertifyRequest, answer: Mapping[str, Any]) -> CertifyVerdict:
    """That of the answer of certify's program about a model with this config.json."""
    model = {"model_type": config["model_type"], "config": config_hash(config)}
    asked = {"model": request.model, "stages": list(request.stages), "lora": request.lora, "quick": request.quick}
    return from_dict({**asked, **model, "versions": versions(FACTS["packages"]), "time": utc_now(), **answer})


def from_dict(content: Mapping[str, Any]) -> CertifyVerdict:
    """A verdict from its JSON. Raises KeyError, TypeError or ValueError for anything else."""
    rows = tuple({**row, "avoid": list(row["avoid"])} for row in content["checks"])
    return CertifyVerdict({key: content[key] for key in FACTS["keys"]}, rows, tuple(map(_result, rows)))


def _result(row: Mapping[str, Any]) -> CheckResult:
    """A result from its JSON, whose check cannot be run again."""
    facts = CHECK_FACTS.get(row["check"], {})
    check = Check(row["check"], row["title"], lambda _: (), needs=facts.get("needs", ""), finds=facts.get("finds", ""))
    return CheckResult(check=check, findings=tuple(Finding(**each) for each in row["findings"]), seconds=row["seconds"])


def record(verdict: CertifyVerdict) -> Path:
    """Keep a verdict; the file. Raises OSError."""
    about = verdict.about
    name = f"{_key(about['versions'])}-{about['task']}{'-quick' if about['quick'] else ''}.json"
    file = cache_root() / "certify" / str(about["config"]) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(file, {"version": 1, **verdict.as_dict()})
    return file


def recorded(config: Mapping[str, Any], task: str) -> tuple[str, CertifyVerdict | None]:
    """The verdict on a model with this config.json: for `task` before that for another, of all checks before that of
    --quick, the newest first. It is "found" for these versions, for "other" ones, or "damaged", or there is "none"."""
    known, damaged, now = [], False, _key(versions(FACTS["packages"]))
    for file in (cache_root() / "certify" / config_hash(config)).glob("*.json"):
        try:
            verdict = from_dict(parse_json(file.read_bytes()))
            about = verdict.about
            rank = (_key(about["versions"]) == now, about["task"] == task, not about["quick"], str(about["time"]))
            known.append((rank, verdict))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            damaged = damaged or file.name.startswith(now)
    (is_now, *_), best = max(known, key=lambda each: each[0], default=((False,), None))
    return "found" if is_now else "damaged" if damaged else "other" if best else "none", best


def _key(installed: Mapping[str, str]) -> str:
    return "-".join(f"{name}{installed.get(name, '')}" for name in FACTS["packages"])
