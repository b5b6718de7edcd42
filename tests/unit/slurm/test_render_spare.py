"""--spare: a job has more nodes than it uses, and one takes the place of a lost node. Run under the real bash."""

from __future__ import annotations

import shutil
import signal

import pytest

from dsrun.slurm.render.site import functions_file
from tests.unit.slurm.stand_ins import JOB, SAVES, SCONTROL, SRUN, Shell, requeued, signalled, training

HOSTS = SCONTROL.replace('echo "first-node"', "printf '%s\\n' n1 n2 n3 n4")
FIVE_HOSTS = HOSTS.replace("n4", "n4 n5")
# The worker fails on n2, and trains to the end elsewhere. A task cannot be started on n2 either.
ON_LOST_NODE = """\
nodes=
for word in "$@"; do case $word in --nodelist=*) nodes=,${word#*=}, ;; esac; done
case $nodes in *,n2,*) exit 1 ;; esac
"""


def steps(done) -> list[str]:
    """The nodes of each step that ran the workers."""
    return [
        word.partition("=")[2]
        for words in done.of("srun")
        if "dsrun-node" in words
        for word in words
        if word.startswith("--nodelist=")
    ]


def three_of_four(shell: Shell, **options: str) -> str:
    shell.put("scontrol", HOSTS)
    return training(shell, nodes="3", spare="1", **options)


def test_job_asks_for_spare_nodes_and_does_not_use_them(shell):
    shell.worker = 'touch "$DSRUN_OUTPUT/FINISHED"'
    script = three_of_four(shell)
    assert "#SBATCH --nodes=4\n" in script
    assert "#SBATCH --no-kill\n" in script
    done = shell.run(script)
    assert (done.code, steps(done)) == (0, ["n1,n2,n3"])
    assert "--nnodes=3" in done.launched


def test_spare_node_takes_the_place_of_a_lost_one(shell):
    """The workers start again without n2, and know that it is a restart."""
    shell.put("srun", ON_LOST_NODE + SRUN)
    shell.worker = 'touch "$DSRUN_OUTPUT/FINISHED"'
    done = shell.run(three_of_four(shell))
    assert (done.code, requeued(done)) == (0, False)
    assert steps(done) == ["n1,n2,n3", "n1,n3,n4"]
    assert done.environment["SLURM_RESTART_COUNT"] == "1"
    assert "the loss of n2: again on n1 n3 n4, with a spare node" in done.stderr


def test_spare_node_takes_the_place_of_a_faulty_one(shell):
    """Node 0's supervisor has written the number that the node has in the step; its GPU may be gone by then."""
    shell.worker = """\
        [ ! -e once ] || { touch "$DSRUN_OUTPUT/FINISHED"; exit; }
        touch once "$DSRUN_FAILURES/no-gpus"
        echo "0 a hardware error" >"$DSRUN_FAILURES/faulty-node"; exit 4
    """
    done = shell.run(three_of_four(shell))
    assert (done.code, requeued(done), steps(done)) == (0, False, ["n1,n2,n3", "n2,n3,n4"])
    assert "a hardware error of n1: again on n2 n3 n4" in done.stderr


def test_each_fault_takes_a_spare_node(shell):
    """The first node of the step, twice: its CPUs may still count as taken when the next step begins."""
    shell.put("scontrol", FIVE_HOSTS)
    shell.worker = """\
        [ ! -e twice ] || { touch "$DSRUN_OUTPUT/FINISHED"; exit; }
        [ ! -e once ] || touch twice
        touch once
        echo "0 a hardware error" >"$DSRUN_FAILURES/faulty-node"; exit 4
    """
    done = shell.run(training(shell, nodes="3", spare="2"))
    assert (done.code, requeued(done), steps(done)) == (0, False, ["n1,n2,n3", "n2,n3,n4", "n3,n4,n5"])
    assert done.environment["SLURM_RESTART_COUNT"] == "2"
    assert ["--overlap" in words for words in done.of("srun") if "dsrun-node" in words] == [False, True, True]


@pytest.mark.parametrize("spare", ["1", "2"])
def test_fault_of_a_replaced_node_is_over(shell, spare):
    """What fails next is the program; with no spare node left no node is asked whether it is lost."""
    shell.put("scontrol", HOSTS if spare == "1" else FIVE_HOSTS)
    shell.worker = """\
        [ ! -e once ] || exit 3
        touch once "$DSRUN_FAILURES/no-gpus"
        echo "0 a hardware error" >"$DSRUN_FAILURES/faulty-node"; exit 4
    """
    done = shell.run(training(shell, nodes="3", spare=spare))
    assert (done.code, requeued(done), steps(done)) == (3, False, ["n1,n2,n3", "n2,n3,n4"])
    assert any({"--nodes=1", "true"} <= set(words) for words in done.of("srun")) is (spare == "2")


def test_too_few_spare_nodes_are_not_swapped_in(shell):
    shell.put("srun", ON_LOST_NODE.replace("*,n2,*", "*,n1,* | *,n2,*") + SRUN)
    done = shell.run(three_of_four(shell))
    assert steps(done) == ["n1,n2,n3"]


def test_workers_that_have_saved_use_no_spare_node(shell):
    shell.worker = 'echo "0 a hardware error" >"$DSRUN_FAILURES/faulty-node"; exit 75'
    done = shell.run(three_of_four(shell))
    assert steps(done) == ["n1,n2,n3"]


def test_without_spare_nodes_left_the_job_is_requeued(shell):
    """With n1 replaced, n2 is at fault: the requeued job avoids it."""
    shell.worker = 'echo "0 a hardware error" >"$DSRUN_FAILURES/faulty-node"; exit 1'
    shell.job = JOB + "   ReqNodeList=(null) ExcNodeList=(null)\n"
    done = shell.run(three_of_four(shell))
    assert (done.code, requeued(done), steps(done)) == (0, True, ["n1,n2,n3", "n2,n3,n4"])
    assert ("update", "JobId=12", "ExcNodeList=n2") in done.of("scontrol")


def test_failure_of_the_program_uses_no_spare_node(shell):
    shell.worker = "exit 3"
    done = shell.run(three_of_four(shell))
    assert (done.code, requeued(done), steps(done)) == (3, False, ["n1,n2,n3"])


def test_signal_saves_and_requeues_with_spare_nodes(shell):
    shell.worker = SAVES
    done = signalled(shell, three_of_four(shell), signal.SIGUSR1)
    assert (done.code, requeued(done), steps(done)) == (0, True, ["n1,n2,n3"])


@pytest.mark.parametrize("inline", ["false", "true"])
def test_node_that_fails_preflight_is_replaced_by_a_spare_one(shell, inline):
    """With the functions of both in files that job.bash loads, and in the script."""
    shell.worker = """\
        case " $* " in
            *" doctor "*) echo n3 >"$DSRUN_FAILURES/doctor-exclude"; exit 3 ;;
            *) touch "$DSRUN_OUTPUT/FINISHED" ;;
        esac
    """
    done = shell.run(three_of_four(shell, preflight="true", inline=inline))
    assert (done.code, requeued(done)) == (0, False)
    assert steps(done) == ["n1,n2,n4"]
    assert "preflight: n3 failed: left out, for spare nodes" in done.stderr


def test_signal_during_preflight_uses_no_spare_node(shell):
    """Also where the doctor has spoken against a node by then: the job goes back into the queue."""
    shell.worker = """\
        echo n3 >"$DSRUN_FAILURES/doctor-exclude"
        until [ -e "$DSRUN_STOP_FILE" ]; do sleep 0.02; done; exit 143
    """
    done = signalled(shell, three_of_four(shell, preflight="true"), signal.SIGUSR1)
    assert (done.code, requeued(done), steps(done)) == (0, True, [])


# empty, cut within a function, and not there
@pytest.mark.parametrize("content", ["", "choose_nodes() {\n    local host", None])
@pytest.mark.parametrize("name", ["spare", "preflight", "stage"])
def test_job_ends_where_a_file_of_functions_is_not_whole(shell, tmp_path, name, content):
    """Its stub in job.bash would call itself until the stack is full."""
    functions = tmp_path / "functions"
    shutil.copytree(functions_file().parent, functions)
    (functions / f"{name}.bash").unlink()
    if content is not None:
        (functions / f"{name}.bash").write_text(content)
    script = three_of_four(shell, preflight="true", stage="/shared/x-1-py3-none-any.whl", local_dir=str(shell.tools))
    done = shell.run(script.replace(str(functions_file().parent), str(functions)))
    assert done.code == 4
    assert steps(done) == []
    assert f"dsrun: {functions}/{name}.bash does not define" in done.stderr
