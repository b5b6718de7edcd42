"""SlurmSpec + JobProgram + ClusterSite -> the sbatch script. Pure; ten thousand nodes take as long as one.

A script of --inline has, of slurm/*.bash, the functions that it calls, itself or through others."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dsrun import __version__
from dsrun.datafiles import data_folder, evaluate, kept, patterns_beside, toml_beside
from dsrun.errors import UsageError
from dsrun.launch.program import JobProgram, slug
from dsrun.refusals import Refusals
from dsrun.slurm.render.environment import (
    as_path,
    defaults,
    gpu_check,
    gpus_of,
    has_own_programs,
    launcher,
    preflight,
    pyxis_options,
    stage,
    supervised,
    variables,
    worker_python,
    workers,
)
from dsrun.slurm.render.notation import directive_value, shell_quote, time_limit
from dsrun.slurm.render.options import SlurmSpec, options
from dsrun.slurm.render.site import MIN_LEAD_S, ClusterSite, functions_file, used_functions
from dsrun.slurm.render.spec import gres_gpus, sbatch_entry
from dsrun.system.terminal.display import printable
from dsrun.system.terminal.secrets import masked
from dsrun.system.variables import MISLEADING

if TYPE_CHECKING:
    import jinja2

TEMPLATE = "job.sh.j2"
# With --export=NONE or a list SLURM 22.05 starts jobs without even a HOME; its --get-user-env is ignored there.
USER_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL")
# slurmctld enforces limits about every 30 s, as it does the signal; what still runs then is ended by the script.
_MARGIN_S = 30
INLINED = "@functions@"
"""Stands in a script for the functions, until it is known what it calls."""
_FUNCTIONS: Sequence[Callable[..., Any]] = (
    PurePosixPath, as_path, gpu_check, gpus_of, has_own_programs, launcher, masked, preflight, printable, pyxis_options,
    shlex.join, slug, str, supervised, workers,
)  # fmt: skip


# bash, not HTML: the one filter that makes a value safe is q.
_SYNTAX: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}


def template_file() -> Path:
    return data_folder("slurm") / TEMPLATE


def template_text() -> str:
    return template_file().read_text(encoding="utf-8")


def completed(spec: SlurmSpec, program: JobProgram, site: ClusterSite) -> SlurmSpec:
    """The spec with what follows from the cluster filled in: GPUs and CPUs of each node, and the signal's lead."""
    if spec.gpus_per_node is None and not gres_gpus(spec) and spec.nproc is None:
        usual = site.gpus_per_node if site.gpus_per_node is not None else 1
        usual = 0 if program.on_cpu else usual
        spec = replace(spec, gpus_per_node=str(usual))
    count = gpus_of(spec)
    if count and spec.cpus_per_gpu:
        spec = replace(spec, cpus_per_task=count * spec.cpus_per_gpu)
    elif spec.cpus_per_task is None and not spec.exclusive:
        if count and site.cores_per_gpu:
            spec = replace(spec, cpus_per_task=count * site.cores_per_gpu)
        elif not count:
            spec = replace(spec, cpus_per_task=workers(spec))
    return replace(spec, signal_lead=_lead(spec, site))


def _lead(spec: SlurmSpec, site: ClusterSite) -> int | None:
    """Seconds before the limit; None for a job too short to be signalled in time."""
    if spec.signal_lead is not None:
        return spec.signal_lead
    limit = time_limit(spec.time) if spec.time else None
    if limit and limit < 2 * site.signal_lead_s:
        return MIN_LEAD_S if limit > 2 * MIN_LEAD_S else None
    return site.signal_lead_s


def render_script(spec: SlurmSpec, program: JobProgram, site: ClusterSite, template: str | None = None) -> str:
    """The script. `template` is the text of the user's own.

    Raises UsageError for a template that Jinja2 cannot fill, and for what the spec and the program together cannot be.
    """
    import jinja2

    spec = completed(spec, program, site)
    is_supervised = supervised(spec, program, site)
    Refusals(__file__).check("refused", spec=spec, program=program, gpus=gpus_of(spec), is_supervised=is_supervised)
    if spec.notify:
        _refuse_notify(spec, program, site)
    blanks = context(spec, program, site)
    try:
        script = str(_compiled(template).render(blanks))
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(f"the template, line {error.lineno}: {error.message}") from None
    except jinja2.UndefinedError as error:
        raise UsageError(f"{_place(error)}: {error.message}", fix="slurm/README.md lists the names") from None
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UsageError(f"{_place(error)} cannot be filled: {error}", fix="slurm/README.md lists the names") from None
    if not spec.inline:
        return script
    from dsrun.slurm.render.job_script import with_functions  # few scripts

    texts = (functions_file(each).read_text(encoding="utf-8") for each in used_functions(spec))
    return with_functions(script, INLINED, "\n".join(texts))


def _place(error: Exception) -> str:
    """The line of the template that Jinja2 was at; it puts the template's own lines into the traceback."""
    from traceback import walk_tb

    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
    return f"the template, line {lines[-1]}" if lines else "the template"


@cache
def _compiled(text: str | None) -> "jinja2.Template":
    """The user's template, or the shipped one, which is compiled once: that takes as long as all other work here."""
    import jinja2
    from jinja2.bccache import bc_magic

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, **_SYNTAX)
    environment.filters["q"] = shell_quote
    if text is not None:
        return environment.from_string(text)
    code = kept(
        template_file(), lambda content: environment.compile(content.decode("utf-8")), f"{bc_magic!r} {_SYNTAX}"
    )
    return jinja2.Template.from_code(environment, code, environment.make_globals(None))


def _refuse_notify(spec: SlurmSpec, program: JobProgram, site: ClusterSite) -> None:
    from dsrun.notifications.notify_target import parse_targets  # few jobs have any

    names = [name for target in parse_targets(spec.notify) for name in target.variables]
    if not supervised(spec, program, site):
        raise UsageError("--notify: the job has no supervisor, which sends messages", fix="run it with dsrun's Python")
    given = {entry.partition("=")[0] for entry in spec.env}
    if spec.clean_env and (hidden := [name for name in names if name not in given]):
        raise UsageError(f"--notify: --clean-env hides {hidden[0]} from the job", fix=f"add --env {hidden[0]}")


def context(spec: SlurmSpec, program: JobProgram, site: ClusterSite) -> dict[str, Any]:
    """What the template can name. The spec is a completed one."""
    staged = stage(spec.stage, spec.local_dir) if spec.stage else None
    python, exported = program.interpreter or worker_python(spec, site), variables(spec)
    known: dict[str, Any] = {each.__name__: each for each in _FUNCTIONS}
    known |= {"spec": spec, "program": program, "site": site, "staged": staged, "python": python, "margin": _MARGIN_S}
    return {
        **{name: evaluate(text, known) for name, text in toml_beside(__file__)["context"].items()},
        "version": __version__,
        "functions_text": INLINED if spec.inline else None,
        "directives": directives(spec, program, site),
        "setup_files": [as_path(each) for each in spec.setup_file],
        "needed": [entry for entry in spec.env if "=" not in entry],
        "variables": list(exported.items()),
        "defaults": [each for each in defaults(spec, program).items() if each[0] not in exported],
        "unset": MISLEADING if program.trains else (),
        "program": " ".join(map(shell_quote, program.argv)),
    }


def directives(spec: SlurmSpec, program: JobProgram, site: ClusterSite) -> list[str]:
    """The #SBATCH lines without that word, in the order of the options."""
    spec = replace(
        spec,
        nodes=spec.nodes + spec.spare,
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
    if site.cwd and not any(entry.partition("=")[0] == "chdir" for entry in spec.sbatch):
        lines.append(f"--chdir={directive_value(site.cwd, '--chdir')}")
    return lines + list(_last_directives(spec))


def _last_directives(spec: SlurmSpec) -> Iterator[str]:
    if spec.signal_lead:
        # B: to the batch shell alone, which writes the stop file before it signals the steps (forward in job.bash).
        yield f"--signal=B:USR1@{spec.signal_lead}"
    # Both are written out: where neither is given the cluster's JobRequeue counts (slurm.conf(5)).
    yield "--requeue" if spec.requeue else "--no-requeue"
    # By default a requeued job empties its log (JobFileAppend in slurm.conf(5)).
    yield "--open-mode=append"
    if spec.spare or spec.elastic:
        # A lost node ends the steps on it, not the job.
        yield "--no-kill"
    if spec.clean_env:
        names = (*USER_VARIABLES, *(entry for entry in spec.env if "=" not in entry))
        yield f"--export={','.join(dict.fromkeys(names))}"
    for entry in spec.sbatch:
        key, value = sbatch_entry(entry, "--sbatch")
        yield f"--{key}" if value is None else f"--{key}={value}"


# As slurm/*.bash write one, with the comment above it.
_FUNCTION = re.compile(r"(?:^#.*\n)*^(?P<name>\w+)\(\) \{(?:.*\}|\n(?:.*\n)*?\})\n+", re.MULTILINE)
_GUARDED = re.compile(r'^ *\[ -(?P<test>[nz]) "(?P<names>(?:\$\w+|\$\{\w+:-\})+)" \] \|\| .*\n', re.MULTILINE)
_SET_BY = patterns_beside(__file__, table="set_by", flags=re.MULTILINE)
_COMMENT = re.compile(r"^\s*#.*", re.MULTILINE)


def with_functions(script: str, mark: str, text: str) -> str:
    """The script with, in the place of `mark`, the functions of `text` that it calls."""
    text = _GUARDED.sub(lambda line: "" if _does_nothing(line, script) else line[0], text)
    # Of two functions of one name the last one counts: the first only loads it.
    known = {found["name"]: found[0] for found in _FUNCTION.finditer(text)}
    called = _called(script + _FUNCTION.sub("", text), known)
    kept = _FUNCTION.sub(lambda found: found[0] if found[0] in {known[name] for name in called} else "", text)
    return script.replace(mark, kept.rstrip())


def _does_nothing(line: re.Match[str], script: str) -> bool:
    """Whether its variables keep the line from doing anything in this script."""
    names = re.findall(r"\w+", line["names"].replace(":-", ""))
    if not _SET_BY.keys() >= {*names}:
        return False
    are_set = [bool(_SET_BY[name].search(script)) for name in names]
    return any(are_set) if line["test"] == "n" else not any(are_set)


def _called(script: str, known: Mapping[str, str]) -> set[str]:
    """The functions of `known` that a script calls, itself or through others."""
    found: set[str] = set()
    texts = [script]
    while texts:
        text = _COMMENT.sub("", texts.pop())
        new = {name for name in known.keys() - found if re.search(rf"(?<![\w/.-]){name}(?![\w=-])", text)}
        found |= new
        texts += [known[name].partition("() {")[2] for name in new]
    return found
