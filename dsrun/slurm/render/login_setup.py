"""What a job sets up on its nodes, looked for on the login node: variables, modules, conda environments, tools."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from dsrun.datafiles import toml_beside
from dsrun.errors import MissingError, ToolError
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.messages import joined, suggestion
from dsrun.slurm.render.options import SlurmSpec
from dsrun.system import slurm
from dsrun.system.process.proc import capture

# conda needs seconds for its list, and a module may start programs.
_TIMEOUT_S = 60


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
