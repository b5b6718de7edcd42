"""The labelled sbatch scripts on a real SLURM: the healthy ones train on all their GPUs, and the broken ones do not."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.script_corpus import BROKEN, HEALTHY, LabelledScript
from tests.slurm.configuration import Options
from tests.slurm.conftest import a_cluster
from tests.slurm.corpus_runs import Site
from tests.slurm.jobs import Person

PARTITIONS = [f"PartitionName={name} Nodes=ALL" for name in ("gpu", "a100", "boost", "batch")]
PATIENCE_S = 200
"""Of ranks that are sure to meet."""
IMPATIENCE_S = 3
"""Of those that may never meet; all others are broken for longer than that."""
TRAINING_S = 8


@pytest.fixture(scope="session")
def someone():
    """A user of twelve nodes with eight GPUs each, where job numbers are as high as they soon are anywhere."""
    lines = (*PARTITIONS, "FirstJobId=7100200")
    options = Options(nodes=12, gpus=("a100:8",), cpus=256, memory=2_000_000, lines=lines)
    for cluster in a_cluster(options):
        yield Person(cluster, "ada", cluster.root / "home" / "ada")


def faults(user: Person, group: str, scripts: Iterable[LabelledScript], *, mended: bool) -> dict[str, list[str]]:
    """What is to be seen of each script's run, all at once."""
    site = Site(user, group)
    runs = {
        script.name: site.add(
            script.name,
            script.mended_text if mended else script.text,
            patience_s=PATIENCE_S if mended or not script.code else IMPATIENCE_S,
            # What nobody waits for would be over before the job's end could reach it.
            training_s=TRAINING_S if script.code == "no_wait" and not mended else 0,
            worlds=script.worlds,
            fails=script.training_fails,
        )
        for script in scripts
        if script.runs
    }
    site.run()
    return {name: run.faults() for name, run in runs.items()}


def test_healthy_scripts_train_on_all_their_gpus(someone):
    found = faults(someone, "healthy", HEALTHY, mended=False)
    assert {name: each for name, each in found.items() if each} == {}


def test_broken_scripts_fail_to_be_seen(someone):
    found = faults(someone, "broken", BROKEN, mended=False)
    assert [name for name, each in found.items() if not each] == []


def test_mended_scripts_train_on_all_their_gpus(someone):
    """Nothing but the fault keeps a broken one from it."""
    found = faults(someone, "mended", BROKEN, mended=True)
    assert {name: each for name, each in found.items() if each} == {}
