"""`dsrun render-slurm` as a user calls it where there is no SLURM: the script on stdout, notes on stderr."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from dsrun.options import flag_of
from dsrun.slurm.render.options import options

pytestmark = pytest.mark.usefixtures("nowhere")


def lines(done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("#SBATCH ") for line in done.stdout.splitlines() if line.startswith("#SBATCH ")]


def launched(done) -> str:
    """The last line of the command that the nodes run."""
    return next(line.strip() for line in done.stdout.splitlines() if line.endswith(" &") and " -- " in line)


def test_render_slurm_default_trains_demo(dsrun, here):
    done = dsrun("render-slurm", "--nodes", "4")
    assert launched(done) == "--module -- dsrun.train --model demo-t5 --zero 2 &"
    assert "--nodes=4" in lines(done)
    assert sys.executable in done.stdout
    assert "note: no command after --, and no run.yaml here: the job trains the demo\n" in done.stderr
    assert "note: no SLURM here: nothing is checked against a cluster\n" in done.stderr
    assert f"note: the script calls {sys.executable} and " in done.stderr
    assert "note: the job runs in the folder where sbatch is called" in done.stderr
    assert list(here.iterdir()) == []


def test_note_names_every_file_of_functions_that_the_job_sources(dsrun, here):
    """Whoever copies them to the cluster as the note says has a job that runs."""
    plain = dsrun("render-slurm", "--nodes", "4", "--", "python", "x.py")
    more = dsrun("render-slurm", "--nodes", "4", "--spare", "1", "--preflight", "--", "python", "x.py")
    named = [set(re.findall(r"\w+\.bash", done.stderr)) for done in (plain, more)]
    assert named == [{"job.bash"}, {"job.bash", "spare.bash", "preflight.bash"}]


def test_render_slurm_reads_run_yaml(dsrun, here):
    """The folder's run.yaml is what runs, and its slurm section is read."""
    (here / "run.yaml").write_text(
        "train: {model: demo-t5, output: out dir}\nlaunch: {max_restarts: 3}\n"
        "slurm:\n  nodes: 2\n  gpus_per_node: a100:4\n  time: 20:00:00\n  modules: [cuda/13, nccl]\n"
        "  requeue: no\n  sbatch: {switches: 1}\n"
    )
    done = dsrun("render-slurm", "--nodes", "3")
    # What run.yaml says now, whatever it says when the job starts.
    assert launched(done) == "--module -- dsrun.train --model demo-t5 --max-restarts 3 --output 'out dir' &"
    found = lines(done)
    # 20:00:00 is no sexagesimal number of YAML 1.1, and the command line wins.
    assert {"--nodes=3", "--gpus-per-node=a100:4", "--time=20:00:00", "--no-requeue", "--switches=1"} <= set(found)
    assert "module load cuda/13 nccl" in done.stdout
    assert "--max-restarts=3" in done.stdout
    assert "start_job \"$PWD\"/'out dir'\n" in done.stdout
    assert "the job runs run.yaml" in done.stderr


def test_render_slurm_config_option(dsrun, here):
    (here / "x").mkdir()
    (here / "x" / "my run.yaml").write_text("train: {model: demo-t5}\nslurm: {nodes: 7}\n")
    for args in (["--config", "x/my run.yaml"], ["--", "train", "--config", "x/my run.yaml"]):
        done = dsrun("render-slurm", *args)
        assert "--nodes=7" in lines(done)
        assert launched(done) == "--module -- dsrun.train --model demo-t5 &"


def test_render_slurm_checks_train_flags(dsrun):
    done = dsrun("render-slurm", "--", "train", "--model", "demo-t5", "--zeero", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown flag --zeero" in done.stderr
    assert "--zero" in done.stderr


def test_render_slurm_checks_global_batch(dsrun):
    done = dsrun("render-slurm", "--nodes", "3", "--", "train", "--model", "demo-t5", "--global-batch-size", "64")
    assert (done.returncode, done.stdout) == (2, "")
    assert "64" in done.stderr


def test_render_slurm_does_not_check_files_inside_image(dsrun):
    args = ["--", "train", "--model", "demo-t5", "--train-file", "/inside/x.jsonl"]
    assert dsrun("render-slurm", *args).returncode == 2
    assert dsrun("render-slurm", "--apptainer", "/i.sif", *args).returncode == 0


def test_render_slurm_job_name_and_output_from_train(dsrun):
    done = dsrun("render-slurm", "--", "train", "--model", "google/t5-large", "--dataset", "x", "--output", "/big/run")
    assert "--job-name=t5-large" in lines(done)
    assert "start_job /big/run\n" in done.stdout


def test_render_slurm_of_any_program(dsrun):
    """Any program may stand behind the dashes."""
    done = dsrun("render-slurm", "--", "python", "my_train.py", "--x", "1", "--nodes", "9")
    assert launched(done) == "-- my_train.py --x 1 --nodes 9 &"
    assert "--nodes=1" in lines(done)
    assert "--no-python -- ./tool -v &" in launched(dsrun("render-slurm", "--", "./tool", "-v"))


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("torchrun --nnodes 2 --nproc-per-node 4 x.py --a", "--nodes=2 --gpus-per-node=4 -- python x.py --a"),
        ("python -m torch.distributed.launch x.py", "-- python x.py '--local-rank=${local_rank}'"),
    ],
)
def test_line_of_a_launcher_is_told_as_one_of_dsrun(dsrun, line, same):
    """Which renders the same script."""
    done = dsrun("render-slurm", "--", *line.split())
    assert f"the same as dsrun render-slurm {same}\n" in done.stderr
    assert lines(done) == lines(again := dsrun("render-slurm", *shlex.split(same)))
    assert launched(done) == launched(again)


def test_render_slurm_never_writes_token_to_script(dsrun, environ):
    token = "hf_" + "a1B2" * 9
    for args in (
        ["train", "--model", "demo-t5", "--hub-token", token],
        ["python", "x.py", f"--token={token}"],
    ):
        done = dsrun("render-slurm", "--", *args)
        assert (done.returncode, done.stdout) == (2, "")
        assert token not in done.stderr
    done = dsrun("render-slurm", "--env", f"HF_TOKEN={token}")
    assert done.returncode == 2
    assert token not in done.stderr
    environ["HF_TOKEN"] = token
    done = dsrun("render-slurm", "--env", "HF_TOKEN")
    assert done.returncode == 0
    assert token not in done.stdout + done.stderr
    assert "need HF_TOKEN" in done.stdout


def test_signal_lead_from_earlier_checkpoint_time(dsrun, here):
    """A checkpoint of an earlier run says how long saving takes."""
    (here / "out").mkdir()
    events = [{"kind": "checkpoint_end", "seconds": seconds} for seconds in (40.0, 100.0)]
    (here / "out" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    args = ["--", "train", "--model", "demo-t5", "--output", "out"]
    done = dsrun("render-slurm", *args)
    assert "--signal=B:USR1@260" in lines(done)
    assert "as a checkpoint took 100 s" in done.stderr
    assert "--signal=B:USR1@90" in lines(dsrun("render-slurm", "--signal-lead", "90", *args))


@pytest.mark.parametrize(
    ("time", "lead"), [("1:00:00", "180"), ("5", "60"), ("2", None), ("UNLIMITED", "180"), ("1-00", "180")]
)
def test_signal_lead_of_short_job(dsrun, time, lead):
    """A short job is not signalled when it has just begun."""
    done = dsrun("render-slurm", "--time", time)
    found = [line for line in lines(done) if line.startswith("--signal")]
    assert found == ([f"--signal=B:USR1@{lead}"] if lead else [])
    assert ("too short for a signal" in done.stderr) == (lead is None)


def test_render_slurm_without_gpus_uses_cpu(dsrun):
    for args in (
        ["--nproc", "4"],
        ["--gpus-per-node", "0"],
        ["--", "train", "--model", "demo-t5", "--use_cpu"],
    ):
        done = dsrun("render-slurm", *args)
        assert "export DS_ACCELERATOR=cpu" in done.stdout
        assert not any("gpu" in line for line in lines(done))


def test_render_slurm_output_needs_force_to_overwrite(dsrun, here):
    """The script goes into a file that only --force replaces."""
    assert dsrun("render-slurm", "-o", "job.sh").stdout == ""
    first = (here / "job.sh").read_text()
    assert first.startswith("#!/bin/bash\n")
    assert (here / "job.sh").stat().st_mode & 0o100
    done = dsrun("render-slurm", "--nodes", "2", "-o", "job.sh")
    assert (done.returncode, (here / "job.sh").read_text()) == (2, first)
    assert dsrun("render-slurm", "--nodes", "2", "-o", "job.sh", "--force").returncode == 0
    assert "--nodes=2\n" in (here / "job.sh").read_text()


def test_render_slurm_user_template(dsrun, here):
    shown = dsrun("render-slurm", "--show-template").stdout
    (here / "mine.j2").write_text(shown.replace("set -u -o pipefail", "set -u -o pipefail\necho {{ name | q }}"))
    done = dsrun("render-slurm", "--template", "mine.j2", "-J", "a b")
    assert "\necho a-b\n" in done.stdout
    for text, message in (("{{ nodez }}", "'nodez' is undefined"), ("{% if %}", "the template, line 1")):
        (here / "bad.j2").write_text(text)
        done = dsrun("render-slurm", "--template", "bad.j2")
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr


def test_stage_suggested_for_many_nodes(dsrun):
    """From 16 nodes on the environment is better copied to their disks; an image is not on the shared file system."""
    suggested = "starts from one file system: --stage"
    assert suggested in dsrun("render-slurm", "--nodes", "16").stderr
    for args in (["--nodes", "15"], ["--nodes", "16", "--stage", "env.tar"], ["--nodes", "16", "--apptainer", "i.sif"]):
        assert suggested not in dsrun("render-slurm", *args).stderr


def test_render_slurm_notes_missing_paths(dsrun):
    done = dsrun(
        "render-slurm",
        "--venv",
        "/no/env",
        "--setup-file",
        "no.sh",
        "--stage",
        "no.whl",
        "--log",
        "no/%j.out",
    )
    for message in ("--venv: /no/env/bin/activate", "--setup-file: no.sh", "--stage: no.whl", "mkdir -p"):
        assert message in done.stderr
    assert done.returncode == 0


def test_render_slurm_help_lists_every_option(dsrun):
    flags = set(re.findall(r"--[a-z0-9-]+", dsrun("render-slurm", "--help").stdout))
    assert {flag_of(each) for each in options().values()} <= flags
    own = {
        "--output",
        "--force",
        "--config",
        "--template",
        "--show-template",
        "--submit",
        "--follow",
        "--test-only",
    }
    assert own <= flags


def test_render_slurm_flags_with_underscores(dsrun):
    assert "--gpus-per-node=2" in lines(dsrun("render-slurm", "--gpus_per_node", "2"))


PAGE = Path(__file__).parents[2] / "docs" / "slurm.md"
EXAMPLES = re.findall(r"^\$ dsrun (render-slurm .*?)(?: \| sbatch)?$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", [line for line in EXAMPLES if not re.search("--(submit|follow|test-only)", line)])
def test_docs_render_slurm_examples_render(dsrun, line):
    done = dsrun(*shlex.split(line))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n")


def test_script_of_four_nodes_is_short_and_names_its_origin(dsrun):
    """Administrators read it: at most 60 lines, with the line that starts the workers, who rendered it, and how."""
    done = dsrun("render-slurm", "--nodes", "4")
    assert len(done.stdout.splitlines()) <= 60
    assert "python -m torch.distributed.run" in done.stdout
    assert re.search(r"# Rendered by dsrun \S+ for \w+: dsrun render-slurm --nodes 4\n", done.stdout)
    functions = re.search(r"^source (\S+) \|\| exit 4$", done.stdout, re.MULTILINE)
    assert functions
    assert "requeue_if_interrupted()" in Path(functions[1]).read_text()


def test_inline_script_needs_no_installation(dsrun):
    """With --inline the functions are in the script."""
    done = dsrun("render-slurm", "--nodes", "4", "--inline")
    assert "requeue_if_interrupted() {" in done.stdout
    assert "\nsource " not in done.stdout


def test_flags_of_sbatch_are_taken_on_the_command_line(dsrun):
    done = dsrun("render-slurm", "-N", "2", "-n", "2", "-G", "8", "--mem-per-gpu=60G", "--", "./x")
    assert {"--nodes=2", "--gpus-per-node=4", "--mem-per-gpu=60G"} <= set(lines(done))
    assert "one task a node" in dsrun("render-slurm", "-N", "2", "-n", "16", "--", "./x").stderr


def test_fewer_cpus_than_workers_are_noted(dsrun):
    done = dsrun("render-slurm", "--gpus-per-node", "2", "-c", "1", "--", "./x")
    assert "note: 1 CPU for 2 workers a node: they wait for each other (--cpus-per-task)\n" in done.stderr


def test_elastic_job_needs_a_batch_for_each_number_of_nodes(dsrun, here):
    """Found on the login node, with sizes that work; from run.yaml as from a flag, before or behind `--`."""
    flags = ["--nproc", "2", "--gpus-per-node", "0"]
    train = ["train", "--model", "demo-t5", "--global-batch-size"]
    refused = dsrun("render-slurm", *flags, "--elastic", "2:3", "--", *train, "64")
    assert refused.returncode == 2
    assert "60 or 72" in refused.stderr
    (here / "run.yaml").write_text("train: {model: demo-t5, global_batch_size: 60}\nlaunch: {elastic: '2:3'}\n")
    given = dsrun("render-slurm", *flags, "--elastic", "2:3", "--", *train, "60")
    behind = dsrun("render-slurm", *flags, "--", *train, "60", "--elastic", "2:3")
    for done in (given, behind, dsrun("render-slurm", *flags)):
        assert {"--nodes=3", "--no-kill"} < {*lines(done)}
        assert "--elastic 2:3 --" in done.stdout
