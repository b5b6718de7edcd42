"""SlurmSpec + Program + Site -> the sbatch script. Pure; it names no host: ten thousand nodes take as long as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import PurePosixPath
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from dsrun import __version__
from dsrun.datafiles import data_folder
from dsrun.errors import UsageError
from dsrun.slurm.render.networks import interface_variables, preset_variables
from dsrun.slurm.render.program import Program, slug
from dsrun.slurm.render.quote import directive_value, shell_quote
from dsrun.slurm.render.rules import gres_gpus, sbatch_entry
from dsrun.slurm.render.site import LEAST_LEAD_S, Site
from dsrun.slurm.render.spec import SlurmSpec, options
from dsrun.slurm.render.stage import Stage, stage
from dsrun.slurm.units import gpu_words, time_limit

if TYPE_CHECKING:
    import jinja2

TEMPLATE = "job.sh.j2"
# With --export=NONE or a list SLURM 22.05 starts jobs without even a HOME; its --get-user-env is ignored there.
WHO = ("HOME", "USER", "LOGNAME", "SHELL")
# Accelerate reads these before anything else; ACCELERATE_USE_CPU makes the Trainer drop DeepSpeed in silence.
MISLEADING = (
    "ACCELERATE_USE_CPU",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_MIXED_PRECISION",
    "ACCELERATE_USE_FSDP",
)
# slurmctld enforces limits about every 30 s, as it does the signal; what still runs then is ended by the script.
_MARGIN_S = 30


def template_text() -> str:
    """The shipped template."""
    return (data_folder("slurm") / TEMPLATE).read_text(encoding="utf-8")


def completed(spec: SlurmSpec, program: Program, site: Site) -> SlurmSpec:
    """The spec with what follows from the cluster filled in: GPUs and CPUs of each node, and the signal's lead."""
    if spec.gpus_per_node is None and not gres_gpus(spec, {}) and spec.nproc is None:
        usual = site.gpus_per_node if site.gpus_per_node is not None else 1
        usual = 0 if program.on_cpu else usual
        spec = replace(spec, gpus_per_node=str(usual))
    count = gpus_of(spec)
    if spec.cpus_per_task is None and not spec.exclusive:
        if count and site.cores_per_gpu:
            spec = replace(spec, cpus_per_task=count * site.cores_per_gpu)
        elif not count:
            spec = replace(spec, cpus_per_task=workers(spec))
    return replace(spec, signal_lead=_lead(spec, site))


def _lead(spec: SlurmSpec, site: Site) -> int | None:
    """Seconds before the limit; None for a job too short to be signalled in time."""
    if spec.signal_lead is not None:
        return spec.signal_lead
    limit = time_limit(spec.time) if spec.time else None
    if limit and limit < 2 * site.lead:
        return LEAST_LEAD_S if limit > 2 * LEAST_LEAD_S else None
    return site.lead


def gpus_of(spec: SlurmSpec) -> int:
    """GPUs of each node."""
    if spec.gpus_per_node is not None:
        found = gpu_words(spec.gpus_per_node)
        return found[1] if found else 0
    return gres_gpus(spec, {})


def workers(spec: SlurmSpec) -> int:
    """Workers of each node: as many as said, else one per GPU."""
    return spec.nproc or gpus_of(spec) or 1


def render(spec: SlurmSpec, program: Program, site: Site, template: str | None = None) -> str:
    """The script. `template` is the text of the user's own.

    Raises UsageError for a template that Jinja2 cannot fill, and for what the spec and the program together cannot be.
    """
    import jinja2

    spec = completed(spec, program, site)
    _refuse(spec, program)
    blanks = context(spec, program, site)
    try:
        return str(_compiled(template if template is not None else template_text()).render(blanks))
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(f"the template, line {error.lineno}: {error.message}") from None
    except jinja2.UndefinedError as error:
        raise UsageError(f"{_place(error)}: {error.message}", fix="slurm/README.md lists the names") from None
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UsageError(
            f"{_place(error)} cannot be filled: {error}", fix="slurm/README.md lists the names"
        ) from None


def _place(error: Exception) -> str:
    """The line of the template that Jinja2 was at; it puts the template's own lines into the traceback."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
    return f"the template, line {lines[-1]}" if lines else "the template"


@cache
def _compiled(text: str) -> jinja2.Template:
    import jinja2

    # bash, not HTML: the one filter that makes a value safe is q.
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["q"] = shell_quote
    return environment.from_string(text)


def _refuse(spec: SlurmSpec, program: Program) -> None:
    if spec.array and program.output:
        raise UsageError(
            f"the tasks of --array would all train in {program.output}",
            fix="leave --output away: each has runs/NAME-JOB_TASK",
        )
    if spec.nproc and gpus_of(spec) and spec.nproc > gpus_of(spec):
        raise UsageError(
            f"--nproc {spec.nproc}: each node has {gpus_of(spec)} GPUs", fix=f"--nproc {gpus_of(spec)}"
        )


def context(spec: SlurmSpec, program: Program, site: Site) -> dict[str, Any]:
    """What the template can name. The spec is a completed one."""
    staged = stage(spec.stage, spec.local_dir) if spec.stage else None
    python = program.interpreter or _python(spec, site)
    exported = variables(spec, program)
    return {
        "version": __version__,
        "directives": directives(spec, program),
        "modules": spec.module,
        "setup_files": [_as_path(each) for each in spec.setup_file],
        "conda": spec.conda,
        "venv": _as_path(spec.venv) if spec.venv else None,
        "needed": [entry for entry in spec.env if "=" not in entry],
        "variables": list(exported.items()),
        "defaults": [each for each in _defaults(spec, program).items() if each[0] not in exported],
        "unset": MISLEADING if program.trains else (),
        "path_first": str(PurePosixPath(python).parent) if _is_own(spec, python, staged) else None,
        "name": slug(spec.job_name) if spec.job_name else program.name,
        "output": program.output,
        "trains": program.trains,
        "nproc": workers(spec),
        "cpu_only": gpus_of(spec) == 0,
        "stage": _staged(staged, python),
        "launcher": _launcher(spec, python, staged),
        "own_python": site.own_python,
        "srun_options": _pyxis(spec),
        "max_restarts": spec.max_restarts or 0,
        "restarts_given": spec.max_restarts is not None,
        "requeue": spec.requeue and spec.max_requeues > 0,
        "saving_time": max(_MARGIN_S, spec.signal_lead - _MARGIN_S) if spec.signal_lead else None,
        "max_requeues": spec.max_requeues,
        "array_flag": spec.array_flag,
        "program": " ".join(map(shell_quote, program.argv)),
    }


def _as_path(text: str) -> str:
    """`text` with a slash in it: bash's `source` looks for bare names on PATH before it looks here."""
    return text if "/" in text and not text.startswith("-") else f"./{text}"


def directives(spec: SlurmSpec, program: Program) -> list[str]:
    """The #SBATCH lines without that word, in the order of the options."""
    spec = replace(
        spec,
        job_name=spec.job_name or program.name,
        mail_type=spec.mail_type or ("END,FAIL,REQUEUE" if spec.mail_user else None),
        gpus_per_node=spec.gpus_per_node if gpus_of(spec) else None,
    )
    lines = []
    for name, each in options().items():
        key, value = each.metadata.get("sbatch"), getattr(spec, name)
        if key and value is True:
            lines.append(f"--{key}")
        elif key and value not in (None, False):
            lines.append(f"--{key}={directive_value(value, f'--{key}')}")
        if name == "nodes":
            lines.append("--ntasks-per-node=1")
    return lines + list(_last_directives(spec))


def _last_directives(spec: SlurmSpec) -> Iterator[str]:
    if spec.signal_lead:
        yield f"--signal=B:USR1@{spec.signal_lead}"
    yield "--requeue" if spec.requeue else "--no-requeue"
    yield "--open-mode=append"
    if spec.clean_env:
        names = (*WHO, *(entry for entry in spec.env if "=" not in entry))
        yield f"--export={','.join(dict.fromkeys(names))}"
    for entry in spec.sbatch:
        key, value = sbatch_entry(entry, "--sbatch")
        yield f"--{key}" if value is None else f"--{key}={value}"


def variables(spec: SlurmSpec, program: Program) -> dict[str, str]:
    """What the script exports: what the spec means for all libraries, then the user's NAME=VALUE."""
    found: dict[str, str] = {}
    if gpus_of(spec) == 0:
        # Where GPUs are not fenced off, a job that asked for none would see them all the same.
        found |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    found |= interface_variables(spec.interface)
    found |= {name: value for name, equals, value in (each.partition("=") for each in spec.env) if equals}
    return found


def _defaults(spec: SlurmSpec, program: Program) -> dict[str, str]:
    """What the script exports where sbatch was called with nothing of that name: training's, and the network's."""
    found: dict[str, str] = {}
    if program.trains:
        found["TOKENIZERS_PARALLELISM"] = "false"
        if gpus_of(spec):
            found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return found | preset_variables(spec.network)


def _python(spec: SlurmSpec, site: Site) -> str:
    """The rendering dsrun's own interpreter, unless the job makes itself an environment."""
    return site.python if uses_own_python(spec) else "python"


def uses_own_python(spec: SlurmSpec) -> bool:
    """Whether the workers run with the Python that renders, or one that has what it has."""
    return not any((spec.venv, spec.conda, spec.module, spec.container_image, spec.apptainer))


def _is_own(spec: SlurmSpec, python: str, staged: Stage | None) -> bool:
    """Whether the programs beside the interpreter (ninja, above all) are those that belong to the job."""
    other = spec.container_image or spec.apptainer or (staged is not None and staged.has_python)
    return python.startswith("/") and not other


def _launcher(spec: SlurmSpec, python: str, staged: Stage | None) -> str:
    """The words, ready for the shell, that start Python on a node."""
    if staged and staged.has_python:
        return '"$DSRUN_LOCAL/env/bin/python"'
    if spec.apptainer:
        binds = [f"--bind={shell_quote(each)}" for each in spec.container_mounts]
        nv = ["--nv"] if gpus_of(spec) else []
        # Outside of $HOME Apptainer sees the folder it is called in only where the site lets it.
        own = ['--bind="$PWD"', '--bind="$DSRUN_OUTPUT"', '--pwd="$PWD"']
        return " ".join(
            ["apptainer exec", *nv, *own, *binds, shell_quote(spec.apptainer), shell_quote(python)]
        )
    return shell_quote(python)


def _pyxis(spec: SlurmSpec) -> list[str]:
    """Options of srun for an image; the job's folder and its run folder are seen inside under their own names."""
    if not spec.container_image:
        return []
    mounts = "".join("," + shell_quote(_mount(each)) for each in spec.container_mounts)
    names = [entry.partition("=")[0] for entry in spec.env]
    lines = [
        f"--container-image={shell_quote(spec.container_image)}",
        f'--container-mounts="$PWD:$PWD,$DSRUN_OUTPUT:$DSRUN_OUTPUT"{mounts}',
        '--container-workdir="$PWD"',
    ]
    return lines + ([f"--container-env={','.join(names)}"] if names else [])


def _mount(text: str) -> str:
    return text if ":" in text else f"{text}:{text}"


def _staged(staged: Stage | None, python: str) -> dict[str, Any] | None:
    if staged is None:
        return None
    return {
        "kind": staged.kind,
        "path": _as_path(staged.path) if staged.path.startswith("-") else staged.path,
        "file": staged.file,
        "local_dir": staged.local_dir,
        "python": None if staged.has_python else python,
    }
