"""What a rendered script starts on each node, and with which environment. Run under the real bash."""

from __future__ import annotations

import os
import re

from tests.unit.slurm.stand_ins import FINISHED, other, rendezvous, requeued, training


def test_each_node_starts_one_supervisor_that_outlives_early_signals(shell):
    shell.worker = 'kill -USR1 $$; kill -TERM $$; touch "$DSRUN_OUTPUT/FINISHED"; exit 0'
    done = shell.run(training(shell, nodes="2", gpus_per_node="4"))
    assert done.code == 0
    assert done.supervisor == ("-m", "dsrun", "launch", "--", "python", "-m")
    assert rendezvous(done) == {
        "--nnodes": "2",
        "--nproc-per-node": "4",
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": "first-node:15024",
        "--rdzv-id": "12-0",
    }
    seen = done.environment
    assert re.fullmatch("[0-9a-f]{32}", seen["DSRUN_SECRET"])
    assert seen["OMP_NUM_THREADS"] == "1"  # 8 cores, 4 workers, half for the data loaders
    assert {
        seen[name].startswith(str(shell.tools)) for name in ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
    } == {True}


def test_restarts_are_the_recipes_unless_the_job_says_how_many(shell):
    shell.worker = FINISHED
    assert rendezvous(shell.run(training(shell, max_restarts="0")))["--max-restarts"] == "0"
    assert rendezvous(shell.run(other(shell)))["--max-restarts"] == "0"


def test_each_node_starts_one_agent_of_any_other_program_that_outlives_the_signals(shell):
    shell.worker = "kill -USR1 $$; kill -TERM $$; exit 0"
    done = shell.run(other(shell, nodes="2", gpus_per_node="4"))
    assert done.code == 0
    assert done.supervisor == ("-m",)
    assert rendezvous(done)["--rdzv-endpoint"] == "first-node:15024"
    seen = done.environment
    assert "SIGTERM" not in seen["PET_SIGNALS_TO_HANDLE"]
    assert seen["PET_RDZV_CONF"] == "is_host=true"


def test_a_job_on_cpus_says_so_and_shares_the_cores(shell):
    done = shell.run(training(shell, nproc="2"))
    seen = done.environment
    assert (seen["DS_ACCELERATOR"], seen["OMP_NUM_THREADS"], seen["CUDA_VISIBLE_DEVICES"]) == ("cpu", "4", "")
    assert "--nproc-per-node=2" in done.launched


def test_srun_is_told_of_the_cpus_and_the_environment(shell):
    shell.variables["SLURM_CPUS_PER_TASK"] = "6"
    done = shell.run(other(shell))
    assert done.of("srun")[0][:3] == ("--export=ALL", "--kill-on-bad-exit=1", "--cpus-per-task=6")
    # The supervisors leave together; one that died alone must not keep the others for ever.
    done = shell.run(training(shell))
    assert done.of("srun")[0][:3] == ("--export=ALL", "--wait=60", "--cpus-per-task=6")


def test_an_old_lock_of_a_killed_build_is_removed(shell):
    lock = shell.tools / f"dsrun-{os.getuid()}" / "extensions-12" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    shell.run(other(shell))
    assert not lock.exists()


def test_what_training_compiles_is_kept_from_job_to_job(shell):
    """dsrun locks the folder and clears it of stale locks itself, so jobs on one node may share it."""
    first = shell.run(training(shell)).environment["TORCH_EXTENSIONS_DIR"]
    shell.variables["SLURM_JOB_ID"] = "13"
    assert shell.run(training(shell)).environment["TORCH_EXTENSIONS_DIR"] == first
    assert shell.run(other(shell)).environment["TORCH_EXTENSIONS_DIR"].endswith("extensions-13")


def test_folders_for_builds_that_the_user_chose_stay(shell):
    shell.variables["TORCH_EXTENSIONS_DIR"] = "/chosen"
    assert shell.run(training(shell)).environment["TORCH_EXTENSIONS_DIR"] == "/chosen"


def test_a_variable_that_is_to_be_passed_on_has_to_be_there(shell):
    script = training(shell, env=["MY_TOKEN"])
    assert "MY_TOKEN=" not in script
    done = shell.run(script)
    assert (done.code, done.of("srun")) == (4, [])
    assert "MY_TOKEN is not set where sbatch was called" in done.stderr
    shell.variables["MY_TOKEN"] = "secret"
    assert shell.run(script).environment["MY_TOKEN"] == "secret"


def test_variables_that_make_accelerate_drop_deepspeed_do_not_reach_the_workers(shell):
    shell.variables["ACCELERATE_USE_CPU"] = "true"
    assert "ACCELERATE_USE_CPU" not in shell.run(training(shell)).environment


def test_a_preset_gives_way_to_the_environment_and_an_interface_does_not(shell):
    shell.variables |= {"NCCL_IB_TIMEOUT": "30", "GLOO_SOCKET_IFNAME": "lo"}
    seen = shell.run(training(shell, network="infiniband", interface="ib0")).environment
    assert (seen["NCCL_IB_TIMEOUT"], seen["NCCL_NET"]) == ("30", "IB")
    assert (seen["NCCL_SOCKET_IFNAME"], seen["GLOO_SOCKET_IFNAME"]) == ("=ib0", "ib0")


def test_modules_are_loaded_before_the_environment_is_activated(shell):
    (shell.tools / "v" / "bin").mkdir(parents=True)
    (shell.tools / "v" / "bin" / "activate").write_text('echo "activate $LOADED"')
    (shell.tools / "setup").write_text('module() { LOADED="$*"; }; echo "$UNSET_IN_HERE"')
    script = training(
        shell, module=["cuda/13", "a b"], setup_file=[str(shell.tools / "setup")], venv=str(shell.tools / "v")
    )
    shell.variables["BASH_ENV"] = str(shell.tools / "setup")
    done = shell.run(script)
    assert "activate load cuda/13 a b" in done.stdout
    assert done.launched  # by `python` from PATH, which is that of the environment


def test_options_that_a_set_up_file_leaves_behind_do_not_end_the_script(shell):
    (shell.tools / "setup").write_text("set -eu\nset +o pipefail\n")
    shell.worker = "exit 75"
    done = shell.run(training(shell, setup_file=[str(shell.tools / "setup")]))
    assert (done.code, requeued(done)) == (0, True)


def test_a_module_that_cannot_be_loaded_ends_the_job(shell):
    shell.put("module", "exit 1")
    done = shell.run(training(shell, module=["nowhere"]))
    assert (done.code, done.of("srun")) == (4, [])
