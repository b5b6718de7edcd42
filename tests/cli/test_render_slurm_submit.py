"""`dsrun render-slurm` where SLURM is: what it submits, and what its answers and the login node's tools say."""

from __future__ import annotations

import shutil

import pytest

from dsrun import __version__
from tests.slurm_recordings import stand_in_cluster

pytestmark = pytest.mark.usefixtures("nowhere")


def lines(done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("#SBATCH ") for line in done.stdout.splitlines() if line.startswith("#SBATCH ")]


def put(folder, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


SBATCH = '#!/bin/sh\n/bin/cat >"${0%/*}/script"\necho 77\n'


def test_submit_prints_only_the_job_id(dsrun, nowhere):
    put(nowhere, "sbatch", SBATCH)
    done = dsrun("render-slurm", "--submit", "--", "./x", "it's")
    assert (done.returncode, done.stdout) == (0, "77\n"), done.stderr
    shown = dsrun("render-slurm", "--", "./x", "it's").stdout
    assert (nowhere / "script").read_text().replace(" --submit", "", 1) == shown


def test_render_slurm_when_controller_does_not_answer(dsrun, nowhere):
    """A controller that does not answer keeps nobody from rendering."""
    for tool in ("scontrol", "sinfo", "squeue", "sacctmgr"):
        put(nowhere, tool, "#!/bin/sh\necho 'error: Unable to contact slurm controller' >&2\nexit 1\n")
    done = dsrun("render-slurm", "--nodes", "2")
    assert "--nodes=2" in lines(done)
    assert "nothing is checked against a cluster\n" in done.stderr


def test_sbatch_error_is_passed_on(dsrun, nowhere):
    put(nowhere, "sbatch", "#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    for flag in ("--submit", "--test-only"):
        done = dsrun("render-slurm", flag)
        assert (done.returncode, done.stdout) == (1, "")
        assert "invalid partition" in done.stderr


@pytest.mark.parametrize("flag", ["--submit", "--follow", "--test-only"])
def test_submit_without_slurm_is_refused(dsrun, flag):
    done = dsrun("render-slurm", flag)
    assert (done.returncode, done.stdout) == (4, "")
    assert "error: " in done.stderr


@pytest.fixture
def programs(programs):
    """They answer for the recorded cluster."""
    stand_in_cluster(programs)
    return programs


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--", "python", "no_such.py"], "error: there is no file no_such.py [slurm_missing_file] (write its path"),
        (["--env", "NOT_SET_HERE", "--", "./x"], "error: --env NOT_SET_HERE: the variable is not set here"),
        (["--apptainer", "/i.sif", "--", "./x"], "error: --apptainer /i.sif: there is no apptainer here"),
    ],
)
def test_what_the_login_node_knows_is_refused_there(dsrun, programs, here, args, says):
    """A job that would certainly end at once is not rendered on its cluster; without one it is only a note."""
    (here / "x").touch()
    done = dsrun("render-slurm", "--partition", "gpu", "--account", "ml", *args)
    assert says in done.stderr
    assert (done.returncode, done.stdout) == (3, "")
    assert dsrun("render-slurm", "--partition", "gpu", "--account", "ml", "--force", *args).stdout


def test_python_of_environment_is_asked_for_dsrun(dsrun, here):
    """Only one with this version can be a supervisor of a program."""
    folder = here / "env" / "bin"
    folder.mkdir(parents=True)
    for version, is_ours in ((__version__, True), ("0.0.1", False)):
        put(folder, "python", f"#!/bin/sh\necho {version}\n")
        for words in (["--venv", "env", "--", "python", "x.py"], ["--", "env/bin/python", "x.py"]):
            assert ("-m dsrun launch --no-signals -- " in dsrun("render-slurm", *words).stdout) == is_ours
    assert "dsrun launch" not in dsrun("render-slurm", "--venv", "none", "--", "python", "x.py").stdout
    assert "dsrun launch" not in dsrun("render-slurm", "--no-supervise", "--", "python", "x.py").stdout
    assert "dsrun launch" in dsrun("render-slurm", "--venv", "none", "--", "train", "--model", "demo-t5").stdout


MODULE = """() {
    [ "$1" = -t ] && { [ "$3" != refuses ] || echo "refuses/1.0(default)" >&2; return; }
    [ "$2" = refuses ] && return 1
    [ "$2" = first ] || { [ "$2" = second ] && [ -n "$FIRST" ]; } && export FIRST=1
}"""


def test_modules_and_conda_environments_are_looked_up(dsrun, programs, here, environ):
    """In the order in which the script loads them; a module that refuses to be loaded here is there nevertheless."""
    put(here, "x", "#!/bin/sh\n")
    job = ["--partition", "gpu", "--account", "ml", "--", "./x"]
    for name in ("bash", "awk"):
        (programs / name).symlink_to(shutil.which(name))
    environ["PATH"] = str(programs)
    put(programs, "conda", '#!/bin/sh\necho \'{"envs": ["/opt/conda", "/home/a/.conda/envs/train"]}\'\n')
    environ["BASH_FUNC_module%%"] = MODULE
    good = ["--module", "first", "--module", "second", "--module", "refuses", "--conda", "train"]
    assert dsrun("render-slurm", *good, *job).returncode == 0
    done = dsrun("render-slurm", "--module", "second", "--module", "first", "--conda", "trian", *job)
    assert "error: --module second: there is no such module here" in done.stderr
    assert "--module first" not in done.stderr
    assert (
        "error: --conda trian: conda knows no such environment here [slurm_missing_conda] (did you mean train?)"
        in done.stderr
    )
    assert (done.returncode, done.stdout) == (3, "")
    done = dsrun("render-slurm", "--conda", "./env", *job)
    assert "error: --conda ./env: the folder is not a conda environment" in done.stderr
    (here / "env" / "conda-meta").mkdir(parents=True)
    assert dsrun("render-slurm", "--conda", "./env", *job).returncode == 0


def test_image_needs_the_plug_in_of_srun(dsrun, programs, here):
    job = ["--partition", "gpu", "--account", "ml", "--container-image", "docker://x", "--", "./x"]
    put(programs, "srun", "#!/bin/sh\necho '  --export=NAME'\n")
    done = dsrun("render-slurm", *job)
    assert "error: --container-image docker://x: srun here does not have pyxis" in done.stderr
    assert done.returncode == 3
    put(programs, "srun", "#!/bin/sh\necho '  --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH'\n")
    assert dsrun("render-slurm", *job).returncode == 0
