"""The cluster and the installation that a job script is rendered for, what they and earlier runs provide, and the notes
on what was chosen or is missing here.

Where sbatch is called the same user has the same environment and mostly the same file systems as on the nodes, so what
is missing here is an error. Absolute paths may be on the nodes' own disks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dsrun import __version__
from dsrun.datafiles import data_folder, evaluate, toml_beside
from dsrun.errors import MissingError, ToolError
from dsrun.findings.finding import finding_of
from dsrun.slurm.render.options import SlurmSpec

# Where no earlier run says how long a checkpoint takes: ten minutes' training lost to a signal that came too late
# cost more than three minutes' training not done.
DEFAULT_LEAD_S = 180
# slurmctld looks at time limits about every 30 s, so a shorter lead may be missed altogether.
MIN_LEAD_S = 60
_SAVING_TIMES = 2  # the step in progress and a slow file system


def functions_file(name: str = "job") -> Path:
    """The shell functions that job scripts call; `name` another for those of --spare, --preflight, --stage …"""
    return data_folder("slurm") / f"{name}.bash"


def used_functions(spec: SlurmSpec) -> list[str]:
    """The names of the files with shell functions that a job uses: job, and of those beside it those of its options."""
    uses = {name: getattr(spec, name) for name in ("spare", "elastic", "preflight", "stage")}
    uses["spare"] = spec.spare or spec.elastic  # which chooses the nodes
    return ["job", *(name for name, used in uses.items() if used)]


@dataclass(frozen=True, kw_only=True)
class ClusterSite:
    """The cluster and the installation a job is rendered for.

    `gpus_per_node` and `cores_per_gpu` are None where no cluster is there to be asked. `checkpoint_s` is the time
    that the slowest checkpoint of an earlier run took. `python` is the interpreter of the workers, `own_python` the
    one that has dsrun. `functions` is where the nodes find the shell functions that scripts call. `user` and `command`
    rendered it, in the folder `cwd`; None where that is not known on the cluster. `has_dsrun`: the Python of the
    workers, if no image brings it, has this dsrun."""

    python: str = sys.executable
    own_python: str = sys.executable
    gpus_per_node: int | None = None
    cores_per_gpu: int | None = None
    checkpoint_s: float | None = None
    functions: str = field(default_factory=lambda: str(functions_file()))
    user: str = ""
    command: tuple[str, ...] = ()
    cwd: str | None = None
    has_dsrun: bool = True

    @property
    def signal_lead_s(self) -> int:
        """Seconds before the time limit at which a job is to be signalled."""
        if self.checkpoint_s is None:
            return DEFAULT_LEAD_S
        return MIN_LEAD_S + round(_SAVING_TIMES * self.checkpoint_s)


if TYPE_CHECKING:
    from dsrun.findings.finding import Finding
    from dsrun.launch.program import JobProgram
    from dsrun.slurm.cluster.cluster_facts import ClusterFacts
    from dsrun.slurm.render.options import SlurmSpec

# One rank's imports are 66,000 file operations; from here on they take longer than copying the environment.
STAGE_NODES = 16
# An interpreter on a busy file server.
_TIMEOUT_S = 60


def find_site(
    spec: SlurmSpec, program: JobProgram, cwd: Path, notify: Callable[[str], None]
) -> tuple[ClusterSite, ClusterFacts | None]:
    """The site, and the facts of its cluster; None for these if there is no SLURM."""
    site = ClusterSite(
        checkpoint_s=checkpoint_seconds(cwd / program.output) if program.output else None,
        has_dsrun=program.trains or "--no-python" in program.mode or has_dsrun(spec, program, cwd),
    )
    facts = _facts(notify)
    if facts is None:
        return site, None
    from dsrun.slurm.resources import may_take, request

    wanted = request(spec)
    names, fits = wanted.partitions or (None,), partial(may_take, wanted)
    gpus = [count for name in names if (count := facts.usual_gpus(name, fits))]
    cores = [count for name in names if (count := facts.cores_per_gpu(name, fits))]
    if not facts.all_limits:  # the job need not keep those of the others
        gpus, cores = gpus[:1], cores[:1]
    return replace(
        site, gpus_per_node=min(gpus, default=0), cores_per_gpu=min(cores, default=None), cwd=str(cwd)
    ), facts


def _facts(notify: Callable[[str], None]) -> ClusterFacts | None:
    """The facts of the cluster; None where there is none, for which nothing has to be imported."""
    if not os.environ.get("SLURM_CONF") and not any(
        os.access(Path(each, "scontrol"), os.X_OK) for each in os.get_exec_path()
    ):
        return None
    from dsrun.slurm.cluster.discover import discover_if_any

    return discover_if_any(notify)


def has_dsrun(spec: SlurmSpec, program: JobProgram, cwd: Path) -> bool:
    """Whether the Python that the workers will run with is known to have this version of dsrun."""
    from dsrun.slurm.render.environment import stage, uses_own_python

    staged = stage(spec.stage, spec.local_dir) if spec.stage else None
    if staged and staged.has_python:
        python = f"{staged.path}/bin/python" if staged.kind == "folder" else None
    else:
        python = program.interpreter or (f"{spec.venv}/bin/python" if spec.venv else None)
        if python is None and uses_own_python(spec):
            return True
    if python is None:
        return False
    if (cwd / python).parent == Path(sys.executable).parent:
        return True
    from dsrun.system.process.proc import capture  # only for another Python than this one

    try:
        words = [str(cwd / python), "-c", "import dsrun; print(dsrun.__version__)"]
        return capture(words, seconds=_TIMEOUT_S, cwd=cwd).stdout.strip() == __version__
    except (ToolError, MissingError, OSError):
        return False


def checkpoint_seconds(folder: Path) -> float | None:
    """Seconds of the slowest checkpoint that the run in `folder` has written; None where it has written none."""
    from dsrun.runs.folder import RunFolder
    from dsrun.runs.records import iter_records

    times = [
        float(record["seconds"])
        for record in iter_records(RunFolder(folder).events)
        if record.get("kind") == "checkpoint_end" and isinstance(record.get("seconds"), (int, float))
    ]
    return max(times, default=None)


def notices(
    given: SlurmSpec, spec: SlurmSpec, program: JobProgram, site: ClusterSite, *, cluster: bool
) -> Iterator[str]:
    """What was chosen for the user: `spec` is `given`, completed."""
    from dsrun.slurm.render.environment import gpus_of, workers

    if not cluster:
        yield "no SLURM here: nothing is checked against a cluster"
        yield from _of_this_machine(spec, program, site)
    names = {"given": given, "spec": spec, "site": site, "cluster": cluster, "many": STAGE_NODES}
    names |= {"gpus": gpus_of(spec), "count": workers(spec)}
    for row in toml_beside(__file__)["notices"]:
        if evaluate(row["when"], names):
            yield evaluate(row["text"], names)


def _of_this_machine(spec: SlurmSpec, program: JobProgram, site: ClusterSite) -> Iterator[str]:
    """What a script that goes to another machine takes from this one."""
    from dsrun.slurm.render.environment import uses_own_python

    own, fixes = [], []
    if program.interpreter is None and uses_own_python(spec) and site.python.startswith("/"):
        own.append(site.python)
        fixes.append("--venv DIR, --conda NAME or --module NAME for another Python")
    if not spec.inline:
        beside = [f"{name}.bash" for name in used_functions(spec) if name != "job"]
        own.append(f"{site.functions} with {' and '.join(beside)} beside it" if beside else site.functions)
        fixes.append("--inline for the shell functions")
    if own:
        yield f"the script calls {' and '.join(own)}, which the cluster must have there, too ({'; '.join(fixes)})"
    if not any(entry.startswith("chdir=") for entry in spec.sbatch):
        yield "the job runs in the folder where sbatch is called (--sbatch chdir=DIR names another)"


def missing_here(
    spec: SlurmSpec, program: JobProgram, cwd: Path, environ: Mapping[str, str], *, on_cluster: bool
) -> Iterator[Finding]:
    """What the job needs and this machine does not have: notes, and errors for what it would certainly end for.

    `spec` is a completed one. Unless `on_cluster`, this machine is not where sbatch is called, and nothing is certain.
    """
    named = [entry.partition("=")[2].strip() for entry in spec.sbatch if entry.partition("=")[0].strip() == "chdir"]
    cwd = cwd.joinpath(*named)
    yield from _files(spec, program, cwd, on_cluster=on_cluster)
    if not on_cluster:
        return
    from dsrun.slurm.render.login_setup import missing_program, missing_setup  # which starts processes

    yield from missing_program(spec, program, cwd, environ)
    yield from missing_setup(spec, cwd, environ)


def _files(spec: SlurmSpec, program: JobProgram, cwd: Path, *, on_cluster: bool) -> Iterator[Finding]:
    in_image = spec.container_image or spec.apptainer
    files = [("program", each) for each in (program.file, program.interpreter) if each and not in_image]
    files += [("--setup-file", each) for each in spec.setup_file]
    files += [("--stage", spec.stage)] if spec.stage else []
    files += [("--venv", f"{spec.venv}/bin/activate")] if spec.venv else []
    if in_image and in_image.startswith(("/", "./")):
        files.append(("--apptainer" if spec.apptainer else "--container-image", in_image))
    for flag, name in files:
        if not (cwd / name).exists():
            shown = name if name.isprintable() else repr(name)
            if on_cluster and not name.startswith("/"):
                yield finding_of("slurm_missing_file", where=flag.removeprefix("program"), file=shown)
            else:
                yield finding_of("slurm_missing_file.elsewhere", where=flag, file=shown)
    folder = (cwd / spec.log).parent if spec.log else cwd
    if "%" not in str(folder) and not folder.is_dir():
        yield finding_of("slurm_missing_folder", where="--log", folder=folder)
