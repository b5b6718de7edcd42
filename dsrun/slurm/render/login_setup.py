"""What a job starts and sets up on its nodes, looked for on the login node: its program, variables, modules, conda
environments, tools."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from dsrun.datafiles import toml_beside
from dsrun.errors import MissingError, ToolError, nearest
from dsrun.findings.finding import Finding, finding_of, first_where, text_of
from dsrun.launch.program import JobProgram
from dsrun.messages import joined, suggestion
from dsrun.slurm.render.environment import uses_own_python
from dsrun.slurm.render.options import SlurmSpec
from dsrun.system import slurm
from dsrun.system.process.proc import capture

# conda needs seconds for its list, and a module may start programs.
_TIMEOUT_S = 60
# What the kernel reads of a script's first line (binfmt_script).
_LONGEST_LINE = 256


def missing_program(spec: SlurmSpec, program: JobProgram, cwd: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Why the program could not be started from `cwd`, as far as a login node can tell; a missing file aside."""
    if spec.container_image or spec.apptainer or program.trains:
        return
    starts = program.interpreter or (program.entry if "--no-python" in program.mode else "")
    if "/" in starts:
        yield from _not_executable(starts, cwd)
    elif starts:
        yield from _not_on_path(starts, spec, cwd, environ)
    elif "--module" in program.mode and uses_own_python(spec) and not spec.setup_file:
        # Only the first name: what is in a package is found by its own code.
        name = program.entry.partition(".")[0]
        if PathFinder.find_spec(name, [str(cwd), *sys.path]) is None:
            yield finding_of("slurm_python_module", name=name)


def _not_executable(name: str, cwd: Path) -> Iterator[Finding]:
    """Of a file that is there."""
    file = cwd / name
    if not file.exists():
        return
    first = b""
    with suppress(OSError), file.open("rb") as opened:  # a folder; and a program need not be readable
        first = opened.readline(_LONGEST_LINE)
    called = Path(os.fsdecode(first[2:].split(b" ")[0]).strip()) if first.startswith(b"#!/") else file
    may = os.access(file, os.X_OK)
    yield from first_where(__file__, "executable", name=name, path=file, first=first, called=called, may=may)


def _not_on_path(name: str, spec: SlurmSpec, cwd: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """sbatch hands PATH on; behind the programs of the job's Python, which the script puts first."""
    own = str(cwd / spec.venv / "bin") if spec.venv else str(Path(sys.executable).parent)
    path = os.pathsep.join([own, environ.get("PATH", os.defpath)])
    if shutil.which(name, path=path) is not None:
        return
    given = {"--module": spec.module, "--setup-file": spec.setup_file, "--conda": spec.conda, "--stage": spec.stage}
    if brought := [flag for flag, value in given.items() if value]:
        yield finding_of("slurm_program.brought", name=name, flags=", ".join(brought))
    elif (cwd / name).is_file():
        yield finding_of("slurm_program.here", name=name)
    else:
        known = {entry.name for folder in path.split(os.pathsep) for entry in Path(folder or ".").glob(f"{name[:1]}*")}
        fix = suggestion(name, known) if nearest(name, known) else None
        yield finding_of("slurm_program", name=name, fix=fix)


def missing_setup(spec: SlurmSpec, cwd: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What the job would certainly end for. `spec` is a completed one, `cwd` the folder in which the job starts."""
    for name in (entry for entry in spec.env if "=" not in entry):
        if not environ.get(name):
            yield finding_of("slurm_missing_variable", where=f"--env {name}", name=name)
    yield from _modules(spec)
    yield from _tools(spec, environ)
    if spec.conda:
        yield from _conda(spec, spec.conda, cwd)
    if spec.container_image:
        yield from _pyxis(spec.container_image)


def _tools(spec: SlurmSpec, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Programs that are called by name; a module or a setup file may bring them."""
    for flag, value, tool in (("--apptainer", spec.apptainer, "apptainer"), ("--conda", spec.conda, "conda")):
        own_setup = spec.module or spec.setup_file
        if value and not own_setup and shutil.which(tool, path=environ.get("PATH")) is None:
            yield finding_of("slurm_missing_tool", where=f"{flag} {value}", tool=tool)


def _bash(name: str, *words: str) -> str | None:
    """What a script of login_setup.toml prints; None where it fails."""
    try:
        answer = capture(["bash", "-c", toml_beside(__file__)[name], "dsrun", *words], seconds=_TIMEOUT_S)
    except (MissingError, ToolError):
        return None
    return answer.stdout if answer.returncode == 0 else None


def _modules(spec: SlurmSpec) -> Iterator[Finding]:
    answer = (_bash("modules", *spec.module) if spec.module else None) or ""
    if answer.strip() == "none":
        yield finding_of("slurm_missing_module.command", where=f"--module {spec.module[0]}")
        return
    for line in answer.splitlines():
        if line.startswith("missing "):
            where = f"--module {line.removeprefix('missing ')}"
            fix = joined("; ", ["module avail", text_of("slurm.anyway")])
            yield finding_of("slurm_missing_module", where=where, fix=fix)


def _conda(spec: SlurmSpec, name: str, cwd: Path) -> Iterator[Finding]:
    """Whether the environment is there; nothing where conda does not tell."""
    if "/" in name:
        if not (cwd / name / "conda-meta").is_dir():
            yield finding_of("slurm_missing_conda.folder", where=f"--conda {name}", fix=text_of("slurm.anyway"))
        return
    # A sourced file may do anything, and may be what makes conda known.
    answer = None if spec.setup_file else _bash("conda", *spec.module)
    try:
        known = [Path(each).name for each in json.loads(answer or "")["envs"]]
    except (ValueError, KeyError, TypeError):
        return
    if name not in (*known, "base", "root"):
        fix = suggestion(name, known, text_of("slurm_missing_conda.list"))
        yield finding_of("slurm_missing_conda", where=f"--conda {name}", fix=fix)


def _pyxis(image: str) -> Iterator[Finding]:
    """Whether srun has pyxis' options, which are in its help as those of any plug-in of plugstack.conf."""
    try:
        answer = slurm.query_tool(["srun", "--help"])
    except (MissingError, ToolError):
        return
    if answer.returncode == 0 and "--container-image" not in answer.stdout:
        where = f"--container-image {image}"
        yield finding_of("slurm_missing_pyxis", where=where, anyway=text_of("slurm.anyway"))
