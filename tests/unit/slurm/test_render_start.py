"""What a rendered script starts on each node, and with which environment. Run under the real bash."""

from __future__ import annotations

import re
from dataclasses import replace

from dsrun.launch.launcher_line import parse_torchrun
from dsrun.launch.program import any_program
from dsrun.slurm.render.job_script import render_script
from dsrun.slurm.render.site import ClusterSite
from tests.unit.slurm.stand_ins import FINISHED, other, rendezvous, requeued, spec_of, training


def test_srun_starts_one_supervisor_per_node(shell):
    """Each node starts one supervisor, which outlives early signals."""
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
    assert {seen[name].startswith(str(shell.tools)) for name in ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")} == {True}


def test_max_restarts_passed_to_supervisor(shell):
    """The recipe's restarts apply unless the job says how many."""
    shell.worker = FINISHED
    assert rendezvous(shell.run(training(shell, max_restarts="0")))["--max-restarts"] == "0"
    assert rendezvous(shell.run(other(shell)))["--max-restarts"] == "0"


def test_rendezvous_timeout_passed_to_supervisor_and_agent(shell):
    """The nodes wait for each other as long as the job says, whatever it runs."""
    shell.worker = FINISHED
    supervisor = shell.run(training(shell, rendezvous_timeout="1800")).supervisor
    assert supervisor[:5] == ("-m", "dsrun", "launch", "--rendezvous-timeout", "1800")
    agent = shell.run(other(shell, rendezvous_timeout="1800")).environment
    assert agent["PET_RDZV_CONF"] == "timeout=1800"
    agent = shell.run(other(shell, rendezvous_timeout="1800", max_restarts="1")).environment
    assert agent["PET_RDZV_CONF"] == "is_host=true,join_timeout=1800,read_timeout=1800"
    shell.variables["join_timeout"] = "5"
    assert "PET_RDZV_CONF" not in shell.run(other(shell)).environment


def test_srun_starts_one_agent_per_node_for_external_program(shell):
    """Each node starts one torchrun agent for an external program, which outlives the signals."""
    shell.worker = "kill -USR1 $$; kill -TERM $$; exit 0"
    done = shell.run(other(shell, nodes="2", gpus_per_node="4"))
    assert done.code == 0
    assert done.supervisor == ("-m",)
    assert rendezvous(done)["--rdzv-endpoint"] == "first-node:15024"
    assert rendezvous(done)["--rdzv-backend"] == "static"
    seen = done.environment
    assert "SIGTERM" not in seen["PET_SIGNALS_TO_HANDLE"]
    assert (seen["PET_NODE_RANK"], seen["SLURM_GPUS_PER_NODE"]) == ("0", "4")
    restarting = shell.run(other(shell, nodes="2", gpus_per_node="4", max_restarts="2"))
    assert rendezvous(restarting)["--rdzv-backend"] == "c10d"
    assert restarting.environment["PET_RDZV_CONF"] == "is_host=true"


def test_python_program_runs_under_supervisors(shell):
    """If its Python has dsrun: supervisors that leave the signals to it, and no agent's own settings."""
    shell.worker = "kill -USR1 $$; kill -TERM $$; exit 0"
    site = ClusterSite(python=shell.python, own_python=shell.python)
    program = any_program(["python", "x$.py", "--x", "$HOME"])
    done = shell.run(render_script(spec_of(nodes="2", gpus_per_node="4", rendezvous_timeout="5"), program, site))
    launch = ("-m", "dsrun", "launch", "--no-signals", "--rendezvous-timeout", "5", "--", "python", "-m")
    assert (done.code, done.supervisor) == (0, launch)
    assert rendezvous(done) == {
        "--nnodes": "2",
        "--nproc-per-node": "4",
        "--max-restarts": "0",
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": "first-node:15024",
        "--rdzv-id": "12-0",
    }
    assert done.of("srun")[0][1] == "--wait=60"
    assert not any(name.startswith("PET_") for name in done.environment)
    found = parse_torchrun(done.launched)
    assert (found.program, found.max_restarts) == (("x$.py", "--x", "$HOME"), 0)


def test_python_without_dsrun_runs_under_torchrun_alone(shell):
    site = ClusterSite(python=shell.python, own_python=shell.python)
    alone = [
        (spec_of(supervise="false"), site),
        (spec_of(), replace(site, has_dsrun=False)),
        (spec_of(apptainer="x.sif"), site),
    ]
    for spec, place in alone:
        assert "dsrun launch" not in render_script(spec, any_program(["python", "x.py"]), place)


def test_memory_and_gpus_of_the_job_reach_the_program(shell):
    """srun refuses several limits of memory: they stem from the job that sbatch was called in."""
    shell.variables["SLURM_MEM_PER_CPU"] = "1000"
    seen = shell.run(other(shell, gpus_per_node="a100:2")).environment
    assert (seen["SLURM_MEM_PER_CPU"], seen["SLURM_GPUS_PER_NODE"]) == ("1000", "a100:2")
    shell.variables["SLURM_MEM_PER_NODE"] = "2000"
    seen = shell.run(other(shell)).environment
    assert not any(name.startswith("SLURM_MEM_PER_") for name in seen)


def test_cpu_job_sets_accelerator_and_shares_cores(shell):
    """A job on CPUs sets DS_ACCELERATOR and divides the cores among its workers."""
    done = shell.run(training(shell, nproc="2"))
    seen = done.environment
    assert (seen["DS_ACCELERATOR"], seen["OMP_NUM_THREADS"], seen["CUDA_VISIBLE_DEVICES"]) == ("cpu", "4", "")
    assert "--nproc-per-node=2" in done.launched


def test_srun_flags_cpus_per_task_and_export(shell):
    """srun gets the number of CPUs and the environment."""
    shell.variables["SLURM_CPUS_PER_TASK"] = "6"
    done = shell.run(other(shell))
    assert done.of("srun")[0][:3] == ("--export=ALL", "--kill-on-bad-exit=1", "--cpus-per-task=6")
    # The supervisors leave together; one that died alone must not keep the others for ever.
    done = shell.run(training(shell))
    assert done.of("srun")[0][:3] == ("--export=ALL", "--wait=60", "--cpus-per-task=6")


def test_torch_extensions_dir_of_user_kept(shell):
    """TORCH_EXTENSIONS_DIR stays what the user has set."""
    shell.variables["TORCH_EXTENSIONS_DIR"] = "/chosen"
    assert shell.run(training(shell)).environment["TORCH_EXTENSIONS_DIR"] == "/chosen"


def test_forwarded_env_variable_must_be_set(shell):
    """A variable that is to be forwarded has to be set."""
    script = training(shell, env=["MY_TOKEN"])
    assert "MY_TOKEN=" not in script
    done = shell.run(script)
    assert (done.code, done.of("srun")) == (4, [])
    assert "MY_TOKEN is not set where sbatch was called" in done.stderr
    shell.variables["MY_TOKEN"] = "secret"
    assert shell.run(script).environment["MY_TOKEN"] == "secret"


def test_accelerate_variables_not_passed_to_workers(shell):
    """Variables that make accelerate drop DeepSpeed do not reach the workers."""
    shell.variables["ACCELERATE_USE_CPU"] = "true"
    assert "ACCELERATE_USE_CPU" not in shell.run(training(shell)).environment


def test_network_preset_yields_to_env_but_interface_does_not(shell):
    """The environment overrides a network preset, but not --interface."""
    shell.variables |= {"NCCL_IB_TIMEOUT": "30", "GLOO_SOCKET_IFNAME": "lo"}
    seen = shell.run(training(shell, network="infiniband", interface="ib0")).environment
    assert (seen["NCCL_IB_TIMEOUT"], seen["NCCL_NET"]) == ("30", "IB")
    assert (seen["NCCL_SOCKET_IFNAME"], seen["GLOO_SOCKET_IFNAME"]) == ("=ib0", "ib0")


def test_libfabric_presets_name_the_provider(shell):
    """Libfabric takes the fabric's provider and no other; the host's own settings win."""
    shell.variables["NCCL_SOCKET_IFNAME"] = "hsn0"
    seen = shell.run(training(shell, network="slingshot")).environment
    assert (seen["FI_PROVIDER"], seen["NCCL_SOCKET_IFNAME"]) == ("cxi", "hsn0")
    assert shell.run(training(shell, network="efa")).environment["FI_PROVIDER"] == "efa"


def test_modules_loaded_before_venv_activation(shell):
    """Modules are loaded before the environment is activated."""
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


def test_setup_file_shell_options_do_not_end_script(shell):
    """Options that a setup file leaves behind do not end the script."""
    (shell.tools / "setup").write_text("set -eu\nset +o pipefail\n")
    shell.worker = "exit 75"
    done = shell.run(training(shell, setup_file=[str(shell.tools / "setup")]))
    assert (done.code, requeued(done)) == (0, True)


def test_module_load_failure_ends_job(shell):
    """A module that cannot be loaded ends the job."""
    shell.put("module", "exit 1")
    done = shell.run(training(shell, module=["nowhere"]))
    assert (done.code, done.of("srun")) == (4, [])
