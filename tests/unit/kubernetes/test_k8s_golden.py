"""Whole manifests as they are meant to be, in tests/golden/kubernetes.

`UPDATE_GOLDEN=1 pytest tests/unit/kubernetes/test_k8s_golden.py` writes them anew, for reading what has changed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsrun import __version__
from dsrun.kubernetes.objects import manifest
from tests.unit.kubernetes.jobs import EVERYTHING, SCRIPT, TRAINING, objects_of

GOLDEN = Path(__file__).parents[2] / "golden" / "kubernetes"
FOUR = {"nodes": "4", "gpus_per_node": "8", "cpus": "64", "memory": "800Gi", "secret": ["HF_TOKEN=hub:token"]}
CASES = {
    "one-pod": (SCRIPT, {}),
    "four-pods": (TRAINING, FOUR),
    "jobset": (TRAINING, {**FOUR, "kind": "jobset", "queue": "training"}),
    "trainjob": (TRAINING, {**FOUR, "kind": "trainjob", "queue": "training"}),
    "everything": (SCRIPT, EVERYTHING),
}


@pytest.mark.parametrize("name", CASES)
def test_manifest_matches_golden_file(name):
    workload, options = CASES[name]
    text = manifest(objects_of(workload, **options), ("dsrun", "render-k8s"))
    text = text.replace(f"dsrun {__version__}", "dsrun VERSION").replace(f"dsrun:{__version__}", "dsrun:VERSION")
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_manifest_has_a_case():
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(CASES)
