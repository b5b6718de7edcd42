"""What stands in an #SBATCH line is what sbatch reads there: its quoting is its own, and no shell's."""

from __future__ import annotations

import pytest

from dsrun.launch.program import any_program
from dsrun.slurm.render.job_script import render_script
from dsrun.slurm.render.site import ClusterSite
from dsrun.slurm.render.spec import make_spec, run_file_value

ODD = [
    "it's", 'a "b" c', "a\\b", "a\\", '\\"', "#5", "a #5", "$(touch pwned)", "`id`", "$HOME", "--nodes=3", "-x",
    "a;b&c|d", "ă ț ü",
    "a  b", "'", '"', "=", "a=b", "%j", "[1-3]", "*", "~", "{a,b}", ":", "a:b", "(null)x", "x" * 1000,
]  # fmt: skip


def held(ada, place, **options: str):
    """A job with these options that will not start."""
    given = [run_file_value(key, [word], key) for key, word in options.items()]
    script = render_script(make_spec(given), any_program(["true"]), ClusterSite(gpus_per_node=0))
    job = ada.sbatch(script, "--hold", cwd=place)
    record = job.record()
    ada.run("scancel", job.id)
    return job, record


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_sbatch_directive_values_are_quoted(ada, place, text):
    """sbatch reads a value as it was given."""
    job, record = held(ada, place, comment=text, job_name=text)
    assert f"\n   Comment={text} \n" in record
    assert record.startswith(f"JobId={job.id} JobName={text}\n")
    assert "NumNodes=1-1 " in record


@pytest.mark.parametrize("text", ["logs of %x/it's %j.out", 'a "b" #%j.txt', "ü $HOME %j"])
def test_sbatch_log_path_pattern(ada, place, text):
    job, record = held(ada, place, log=text, job_name="my job")
    wanted = text.replace("%j", str(job.id)).replace("%x", "my job")
    assert f"\n   StdOut={place}/{wanted}\n" in record
