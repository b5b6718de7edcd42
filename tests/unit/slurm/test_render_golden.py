"""Whole scripts as they are meant to be, in tests/golden/slurm; bash and shellcheck find nothing wrong with them.

`UPDATE_GOLDEN=1 pytest tests/unit/slurm/test_render_golden.py` writes them anew, for reading what has changed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dsrun import __version__
from dsrun.launch.program import any_program, train_program
from dsrun.slurm.render.job_script import render_script
from dsrun.slurm.render.site import ClusterSite, functions_file
from tests.unit.slurm.stand_ins import spec_of

GOLDEN = Path(__file__).parents[2] / "golden" / "slurm"
FUNCTIONS = "/opt/dsrun/share/job.bash"
SITE = ClusterSite(python="/opt/dsrun/bin/python", own_python="/opt/dsrun/bin/python", functions=FUNCTIONS)
ON_CLUSTER = ClusterSite(
    python="/opt/dsrun/bin/python",
    own_python="/opt/dsrun/bin/python",
    gpus_per_node=4,
    cores_per_gpu=12,
    checkpoint_s=42.0,
    functions=FUNCTIONS,
    user="ada",
    command=("dsrun", "render-slurm", "--nodes", "4"),
    cwd="/home/ada/my project",
)
DEMO = train_program(["--model", "demo-t5", "--zero", "2"], name="demo-t5")
TRANSLATE = train_program(
    ["--model", "t5-large", "--dataset", "wmt16", "--dataset-config", "ro-en", "--output", "runs/ro"],
    output="runs/ro",
    name="t5-large",
)
SCRIPT = any_program(["python", "my_train.py", "--x", "1", "it's $HOME"])

CASES = {
    "minimal": (spec_of(), DEMO, SITE),
    "four-nodes": (
        spec_of(nodes="4", gpus_per_node="a100:4", time="20:00:00", partition="gpu"),
        TRANSLATE,
        ON_CLUSTER,
    ),
    "cpu-only": (spec_of(nodes="2", nproc="4"), DEMO, SITE),
    "array": (spec_of(array="0-9%2", array_flag="--seed", gres="gpu:a100:1,nvme:1"), DEMO, ON_CLUSTER),
    "container-pyxis": (
        spec_of(
            nodes="2",
            gpus_per_node="8",
            container_image="nvcr.io#nvidia/pytorch:25.08-py3",
            container_mounts=["/data", "/my models:/models:ro"],
            env=["HF_TOKEN"],
            network="infiniband",
        ),
        SCRIPT,
        SITE,
    ),
    "apptainer": (
        spec_of(nodes="2", gpus_per_node="2", apptainer="/images/my train.sif", container_mounts=["/data"]),
        SCRIPT,
        SITE,
    ),
    "stage": (spec_of(nodes="8", stage="/shared/env.tar.gz", local_dir="/local disk"), TRANSLATE, ON_CLUSTER),
    "stage-wheel": (
        spec_of(nodes="8", stage="deepspeed-0.19.8+cu130-cp311-cp311-linux_x86_64.whl"),
        DEMO,
        SITE,
    ),
    "program": (spec_of(nodes="2", max_restarts="1", mem="200G"), SCRIPT, ON_CLUSTER),
    "command": (spec_of(requeue="false", time="1"), any_program(["./tool", "a b"]), SITE),
    "everything": (
        spec_of(
            job_name='ro "large" #2',
            comment="it's for the paper",
            log="logs/%x-%j.out",
            mail_user="ada@example.org",
            nodes="2",
            gpus_per_node="a100:4",
            cpus_per_task="32",
            mem="200G",
            exclusive="true",
            time="2-00:00:00",
            constraint="a100&ib",
            partition="gpu,long",
            account="nlp",
            qos="high",
            reservation="course",
            nodelist="node[01-09]",
            exclude="node[03,05]",
            licenses="matlab:1",
            begin="now+1hour",
            dependency="afterok:1234",
            sbatch=["switches=1@00:10:00", "contiguous"],
            signal_lead="300",
            max_requeues="3",
            max_restarts="2",
            module=["cuda/13.0", "nccl"],
            setup_file=["/shared/set up.sh"],
            conda="train env",
            env=["HF_TOKEN", "WANDB_API_KEY", "GREETING=it's $5"],
            clean_env="true",
            network="ethernet",
            interface="eth0",
        ),
        TRANSLATE,
        ON_CLUSTER,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sbatch_script_matches_golden_file(name):
    """The rendered script equals the golden one."""
    script = render_script(*CASES[name]).replace(f"dsrun {__version__}", "dsrun VERSION")
    path = GOLDEN / f"{name}.sh"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(script)
    assert script == path.read_text()


def test_every_golden_script_has_a_case():
    """No golden script is left without a case."""
    assert {path.stem for path in GOLDEN.glob("*.sh")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_bash_parses_golden_script(name):
    """bash finds no syntax error in the script."""
    done = subprocess.run(["bash", "-n", GOLDEN / f"{name}.sh"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_shellcheck_passes_golden_scripts():
    """shellcheck finds nothing."""
    assert shellcheck(*GOLDEN.glob("*.sh"), *functions_file().parent.glob("*.bash")) == (0, "")


FUNCTIONS_OF_ALL = {
    name
    for file in functions_file().parent.glob("*.bash")
    for name in re.findall(r"^(\w+)\(\) \{", file.read_text(), re.MULTILINE)
}
FUNCTION = re.compile(r"^\w+\(\) \{(.*\}|\n(.*\n)*?\})$", re.MULTILINE)
CALL = r"(?<![\w/.-]){}(?![\w=-])"


def functions_of(script: str) -> dict[str, str]:
    """The functions that a script defines, as bash prints them: without comments."""
    text = "\n".join(found[0] for found in FUNCTION.finditer(script))
    printed = "for name in $(compgen -A function); do declare -f $name; printf '\\0'; done"
    done = subprocess.run(["bash", "-c", f"{text}\n{printed}"], capture_output=True, text=True, check=True, env={})
    return {each.split()[0]: each.partition("\n")[2] for each in done.stdout.split("\0")[:-1]}


def test_inline_scripts_have_exactly_the_functions_they_call(tmp_path):
    """Of each golden script, also with spare nodes and preflight; shellcheck reads those with the fewest and most."""
    scripts = []
    extra = ({}, {"spare": 1}, {"preflight": True})
    for name, (spec, program, site) in CASES.items():
        in_image = spec.container_image or spec.apptainer
        for options in extra[:2] if in_image and not program.trains else extra:
            script = render_script(replace(spec, inline=True, **options), program, site)
            carried = functions_of(script)
            code = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("#"))
            body = "\n".join(carried.values())
            top = FUNCTION.sub(lambda found: found[0] if found[0].startswith("run_workers") else "", code)
            for each in carried.keys() & FUNCTIONS_OF_ALL:
                others = "\n".join(text for other, text in carried.items() if other != each)
                assert re.search(CALL.format(each), others + top), (name, options, each)
            for each in FUNCTIONS_OF_ALL - carried.keys():
                assert not re.search(CALL.format(each), body + top), (name, options, each)
            scripts.append((len(carried), script))
    for name, (_, script) in {"fewest": min(scripts), "most": max(scripts)}.items():
        (tmp_path / name).write_text(script)
    assert shellcheck(*tmp_path.iterdir()) == (0, "")


def test_inline_script_of_training_carries_nothing_of_other_jobs():
    script = render_script(spec_of(nodes="4", inline="true"), DEMO, SITE)
    others = {
        "load_functions",
        "choose_nodes",
        "preflight",
        "stage_environment",
        "check_gpus",
        "code_of_worker",
        "need",
    }
    assert functions_of(script).keys() & others == set()
    assert "time_in_queue" in functions_of(script)


def shellcheck(*files: Path) -> tuple[int, str]:
    beside = Path(sys.executable).with_name("shellcheck")
    program = beside if beside.exists() else shutil.which("shellcheck")
    assert program, "shellcheck is missing: pip install 'dsrun[test]'"
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_sbatch_script_size_independent_of_node_count():
    """The size of the script does not grow with the nodes."""
    small, large = (render_script(spec_of(nodes=nodes, gpus_per_node="8"), DEMO, SITE) for nodes in ("10", "10000"))
    assert large == small.replace("--nodes=10\n", "--nodes=10000\n")
