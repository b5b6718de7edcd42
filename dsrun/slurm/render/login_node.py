"""What this machine can tell of a job's needs before it is submitted: files, variables, modules, environments, tools.

Where sbatch is called the same user has the same environment and mostly the same file systems as on the nodes, so what
is missing here is an error. Absolute paths may be on the nodes' own disks.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of
from dsrun.launch.program import JobProgram
from dsrun.slurm.render.options import SlurmSpec


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
    from dsrun.slurm.render.login_setup import missing_setup  # which starts processes

    yield from missing_setup(spec, cwd, environ)


def _files(spec: SlurmSpec, program: JobProgram, cwd: Path, *, on_cluster: bool) -> Iterator[Finding]:
    in_image = spec.container_image or spec.apptainer
    if program.file and not in_image and not (cwd / program.file).exists():
        yield _missing_file("program", program.file, certain=on_cluster)
    files = [("--setup-file", each) for each in spec.setup_file]
    files += [("--stage", spec.stage)] if spec.stage else []
    files += [("--venv", f"{spec.venv}/bin/activate")] if spec.venv else []
    if in_image and in_image.startswith(("/", "./")):
        files.append(("--apptainer" if spec.apptainer else "--container-image", in_image))
    for flag, name in files:
        if not (cwd / name).exists():
            yield _missing_file(flag, name, certain=on_cluster and not name.startswith("/"))
    folder = (cwd / spec.log).parent if spec.log else cwd
    if "%" not in str(folder) and not folder.is_dir():
        yield finding_of("slurm_missing_folder", where="--log", folder=folder)


def _missing_file(where: str, name: str, *, certain: bool) -> Finding:
    shown = name if name.isprintable() else repr(name)
    if certain:
        return finding_of("slurm_missing_file", where=where.removeprefix("program"), file=shown)
    return finding_of("slurm_missing_file.elsewhere", where=where, file=shown)
