"""--elastic: a job's step outlives a node, and a lost node gets a supervisor again. Run under the real bash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from tests.unit.slurm.stand_ins import SCONTROL, SRUN, training

ROOT = Path(__file__).parents[3]
HOSTS = SCONTROL.replace('echo "first-node"', "printf '%s\\n' n1 n2 n3 n4")
# Node 0's supervisor has lost node 2, and ends when that has another one.
WORKER = """
case ${SLURM_NODEID} in
    0) echo "7 2" >"$DSRUN_FAILURES/missing-nodes"; until [ -e "$STAND_INS/back" ]; do sleep 0.1; done ;;
    *) env -0 >"$STAND_INS/environment"; touch "$STAND_INS/back" ;;
esac
touch "$DSRUN_OUTPUT/FINISHED"
"""


def test_step_stays_without_a_node(shell):
    shell.put("scontrol", HOSTS)
    shell.worker = 'touch "$DSRUN_OUTPUT/FINISHED"'
    script = training(shell, elastic="2:4")
    assert {"#SBATCH --nodes=4", "#SBATCH --no-kill"} < set(script.splitlines())
    done = shell.run(script)
    assert done.code == 0
    [step] = [words for words in done.of("srun") if "dsrun-node" in words]
    assert {"--no-kill", "--wait=0", "--kill-on-bad-exit=0", "--nodes=4"} < set(step)
    assert done.supervisor[done.supervisor.index("--elastic") + 1] == "2:4"


@pytest.mark.parametrize(("is_gone", "place"), [(True, "n4"), (False, "n3")], ids=["spare node", "same node"])
def test_lost_node_gets_a_supervisor_on_a_node_that_answers(shell, is_gone, place):
    gone = 'case "$*" in *--nodelist=n3\\ true) exit 1 ;; esac\n' if is_gone else ""
    # The stand-in says that a task is node 0; this one's command says which it is.
    shell.put("srun", gone + SRUN)
    shell.put("scontrol", HOSTS)
    shell.worker = WORKER
    done = shell.run(training(shell, elastic="2:3", spare="1"))
    assert done.code == 0
    first, second = [words for words in done.of("srun") if "dsrun-node" in words]
    assert {"--nodes=3", "--nodelist=n1,n2,n3"} < set(first)
    assert {"--nodes=1", "--overlap", f"--nodelist={place}"} < set(second)
    expected = {"SLURM_NODEID": "2", "SLURM_STEP_ID": "7", "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NODELIST": "n1"}
    assert expected.items() <= done.environment.items()


@pytest.mark.parametrize("options", [{"elastic": "3"}, {"elastic": "2:3", "nodes": "4"}])
def test_range_that_does_not_fit_is_refused(shell, options):
    with pytest.raises(UsageError) as refused:
        training(shell, **options)
    assert "elastic" in refused.value.message


def test_job_without_a_supervisor_is_refused(shell):
    from dsrun.launch.program import any_program
    from dsrun.slurm.render.job_script import render_script
    from dsrun.slurm.render.site import ClusterSite
    from dsrun.slurm.render.spec import make_spec, run_file_value

    spec = make_spec([run_file_value("elastic", ["2:3"], "--elastic")])
    with pytest.raises(UsageError, match="no supervisor"):
        render_script(spec, any_program(["python", "x.py"], fix=""), ClusterSite(has_dsrun=False))


def test_supervisor_that_ends_at_once_is_started_ever_later(shell):
    """Otherwise a broken node would use up the steps that SLURM allows a job."""
    shell.put("scontrol", HOSTS)
    shell.put("sleep", 'echo >>"$STAND_INS/slept"; exec /bin/sleep 0.02')
    shell.worker = """
        [ "$SLURM_NODEID" = 0 ] || { echo >"$STAND_INS/slept"; touch "$STAND_INS/again"; exit 1; }
        echo "7 2" >"$DSRUN_FAILURES/missing-nodes"
        until [ -e "$STAND_INS/again" ] && [ "$(wc -l <"$STAND_INS/slept")" -ge 40 ]; do /bin/sleep 0.1; done
        touch "$DSRUN_OUTPUT/FINISHED"
    """
    done = shell.run(training(shell, elastic="2:3"))
    assert done.code == 0
    _, *again = [words for words in done.of("srun") if "dsrun-node" in words]
    assert 1 <= len(again) <= 3


@pytest.mark.parametrize(
    ("code", "node", "host", "gone", "requeues"),
    [
        (75, 1, "n2", "n1", True),
        (1, 3, "n4", "n1", True),
        (75, 4, "n5", "n1", False),  # three look, not a thousand
        (0, 1, "n2", "n1", False),
        (75, 1, "n2", "none", False),  # the batch shell is there, and decides
        (75, 1, "n2", "n[12]", False),  # SLURM starts nothing at all: the other node may well be there
        (75, 0, "n1", "n1", False),
    ],
)
def test_job_is_requeued_by_another_node_where_the_first_one_is_lost(tmp_path, code, node, host, gone, requeues):
    for name, does in {
        "srun": f'[[ "$*" != *--nodelist={gone}" true" ]]',
        "scontrol": 'echo "$@" >>"$0.called"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    script = 'source "$1"; write_event() { :; }; shift; run_without_batch_host "$@"'
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_NODEID": str(node), "SLURMD_NODENAME": host}
    env |= {"requeue": "yes", "batch_host": "n1", "job": "7"}
    argv = ["bash", "-c", script, "bash", str(ROOT / "slurm" / "spare.bash"), "sh", "-c", f"exit {code}"]
    assert subprocess.run(argv, env=env, check=False).returncode == code
    assert (tmp_path / "scontrol.called").exists() == requeues
