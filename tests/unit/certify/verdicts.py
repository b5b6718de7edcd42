"""Answers of certify's program of our own making, for the tests of verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsrun.certify.checks import CHECK_FACTS
from dsrun.certify.request import CertifyRequest
from dsrun.certify.verdict import CertifyVerdict, verdict_of
from dsrun.findings.show import STATUSES

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "rope_parameters": {"rope_theta": 1e4}}


def check_row(
    code: str, level: str = "info", message: str = "largest difference 3e-7", avoid: tuple[str, ...] = ()
) -> dict[str, Any]:
    """What the program says of a check that found this; with the level "" it does not apply."""
    finding = {"level": level, "code": code, "message": message, "fix": "a fix" if level != "info" else "", "where": ""}
    title = CHECK_FACTS.get(code, {}).get("title", f"title of {code}")
    status = STATUSES[level] if level else "skip"
    found = {"check": code, "title": title, "status": status, "seconds": 1.5, "findings": [finding] if level else []}
    return {**found, "avoid": list(avoid)}


def answer(*rows: dict[str, Any], task: str = "causal-lm") -> dict[str, Any]:
    return {"task": task, "device": "cpu", "seconds": 4.25, "cpu_seconds": 5.5, "checks": list(rows)}


def verdict(
    *rows: dict[str, Any],
    config: dict[str, Any] = LLAMA,
    task: str = "causal-lm",
    given: str = "some/llama",
    **asked: Any,
) -> CertifyVerdict:
    told = {"folder": str(Path(given).resolve()), **answer(*rows, task=task)}
    return verdict_of(config, CertifyRequest(model=given, **asked), told)
