"""The environment of the job's processes: network presets, variables, interpreter, staged copy, container."""

from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from dsrun.datafiles import data_folder, read_toml
from dsrun.errors import UsageError
from dsrun.launch.program import JobProgram
from dsrun.slurm.render.notation import parse_gpus, shell_quote
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.render.site import ClusterSite
from dsrun.slurm.render.spec import gres_gpus
from dsrun.system.variables import GPUS, LOCAL


@cache
def networks() -> dict[str, dict[str, Any]]:
    """The presets by name: `about` is what each is for, `variables` what it sets."""
    return read_toml(data_folder("slurm") / "networks.toml")


EnvironmentKind = Literal["wheel", "tar", "folder"]
TARS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")


class StagedEnvironment(NamedTuple):
    """What is copied (`path`), what it is called below `local_dir`."""

    kind: EnvironmentKind
    path: str
    file: str
    local_dir: str

    @property
    def has_python(self) -> bool:
        """Whether what is staged brings the interpreter."""
        return self.kind != "wheel"


def stage(path: str, local_dir: str) -> StagedEnvironment:
    """How `path` is staged. A folder is an environment; raises UsageError for a file that is neither wheel nor tar."""
    name = PurePosixPath(path).name
    path = as_path(path) if path.startswith("-") else path
    kind: EnvironmentKind = "wheel" if name.endswith(".whl") else "tar" if name.endswith(TARS) else "folder"
    if kind != "folder":
        return StagedEnvironment(kind=kind, path=path, file=name, local_dir=local_dir)
    if "." in name.lstrip(".") and name.rpartition(".")[2] in ("zip", "sif", "sqsh", "py", "txt", "sh"):
        raise UsageError(f"--stage {path}: neither a wheel nor a tar file nor an environment's folder")
    return StagedEnvironment(kind=kind, path=path, file="staged.tar", local_dir=local_dir)


def as_path(text: str) -> str:
    """`text` with a slash in it: bash's `source` looks for bare names on PATH before it looks here."""
    return text if "/" in text and not text.startswith("-") else f"./{text}"


def gpus_of(spec: SlurmSpec) -> int:
    """GPUs of each node."""
    if spec.gpus_per_node is not None:
        found = parse_gpus(spec.gpus_per_node)
        return found[1] if found else 0
    return gres_gpus(spec)


def workers(spec: SlurmSpec) -> int:
    """Workers of each node: --nproc, else one per GPU."""
    return spec.nproc or gpus_of(spec) or 1


def variables(spec: SlurmSpec) -> dict[str, str]:
    """What the script exports: what the spec means for all libraries, then the user's NAME=VALUE."""
    found = {GPUS: str(gpus_of(spec))}
    if gpus_of(spec) == 0:
        # Where GPUs are not fenced off, a job that asked for none would see them all the same.
        found |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    # NCCL takes a name for a prefix unless `=` stands before it, and `^` for all others. gloo takes whole names only
    # and fails on anything else, so that it gets none from an exclusion.
    if spec.interface and spec.interface.startswith("^"):
        found["NCCL_SOCKET_IFNAME"] = spec.interface
    elif spec.interface:
        names = spec.interface.removeprefix("=")
        found |= {"NCCL_SOCKET_IFNAME": f"={names}", "GLOO_SOCKET_IFNAME": names}
    found |= {name: value for name, equals, value in (each.partition("=") for each in spec.env) if equals}
    return found


def defaults(spec: SlurmSpec, program: JobProgram) -> dict[str, str]:
    """What the script exports where sbatch was called with nothing of that name: training's, and the network's."""
    found: dict[str, str] = {}
    if program.trains:
        found["TOKENIZERS_PARALLELISM"] = "false"
        if gpus_of(spec):
            found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return found | (networks()[spec.network]["variables"] if spec.network else {})


def worker_python(spec: SlurmSpec, site: ClusterSite) -> str:
    """The rendering dsrun's own interpreter, unless the job makes itself an environment."""
    return site.python if uses_own_python(spec) else "python"


def uses_own_python(spec: SlurmSpec) -> bool:
    """Whether the workers run with the Python that renders, or one that has what it has."""
    return not any((spec.venv, spec.conda, spec.module, spec.container_image, spec.apptainer))


def supervised(spec: SlurmSpec, program: JobProgram, site: ClusterSite) -> bool:
    """Whether each node runs `dsrun launch`: for dsrun's own training, and for Python programs whose Python has it."""
    in_image = spec.container_image or spec.apptainer
    is_python = "--no-python" not in program.mode
    return program.trains or bool(spec.supervise and is_python and site.has_dsrun and not in_image)


def gpu_check(spec: SlurmSpec, program: JobProgram, site: ClusterSite) -> str | None:
    """The text of the program that compares the GPUs that torch sees with the job's, where no supervisor does it."""
    if not gpus_of(spec) or supervised(spec, program, site) or not program.uses_python:
        return None
    from dsrun.machine import torch_gpus  # few jobs need it

    return Path(torch_gpus.__file__).read_text(encoding="utf-8").rstrip()


def has_own_programs(spec: SlurmSpec, python: str, staged: StagedEnvironment | None) -> bool:
    """Whether the programs beside the interpreter (ninja, above all) are those that belong to the job."""
    other = spec.container_image or spec.apptainer or (staged is not None and staged.has_python)
    return python.startswith("/") and not other


def launcher(spec: SlurmSpec, python: str, staged: StagedEnvironment | None) -> str:
    """The command, quoted for the shell, that starts Python on a node."""
    if staged and staged.has_python:
        return f'"${LOCAL}/env/bin/python"'
    if spec.apptainer:
        binds = [f"--bind={shell_quote(each)}" for each in spec.container_mounts]
        nv = ["--nv"] if gpus_of(spec) else []
        # Outside of $HOME Apptainer sees the folder it is called in only where the site lets it.
        own = ['--bind="$PWD"', '--bind="$DSRUN_OUTPUT"', '--pwd="$PWD"']
        return " ".join(["apptainer exec", *nv, *own, *binds, shell_quote(spec.apptainer), shell_quote(python)])
    return shell_quote(python)


def preflight(spec: SlurmSpec, program: JobProgram, site: ClusterSite, staged: StagedEnvironment | None) -> str:
    """The doctor's command, quoted for the shell: with the Python of the workers where that has dsrun."""
    python = program.interpreter or worker_python(spec, site)
    has_dsrun = program.trains or site.has_dsrun
    words = ["--preflight"]
    words += ["--ranks", str(spec.nproc)] if spec.nproc else []
    words += ["--min-gpus", str(spec.min_gpus)] if spec.min_gpus is not None else []
    words += ["--min-gpu-memory", str(spec.min_gpu_memory)] if spec.min_gpu_memory is not None else []
    own = launcher(spec, python, staged) if has_dsrun else shell_quote(site.own_python)
    return " ".join([own, "-m dsrun doctor", *words])


def pyxis_options(spec: SlurmSpec) -> list[str]:
    """Options of srun for an image; the job's folder and its run folder are seen inside under their own names."""
    if not spec.container_image:
        return []
    mounts = "".join("," + shell_quote(each if ":" in each else f"{each}:{each}") for each in spec.container_mounts)
    names = [entry.partition("=")[0] for entry in spec.env]
    lines = [
        f"--container-image={shell_quote(spec.container_image)}",
        f'--container-mounts="$PWD:$PWD,$DSRUN_OUTPUT:$DSRUN_OUTPUT"{mounts}',
        '--container-workdir="$PWD"',
    ]
    return lines + ([f"--container-env={','.join(names)}"] if names else [])
