"""The program behind a launch as `dsrun render-slurm` takes it, with what the launcher would have set for it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from dsrun.errors import UsageError
from dsrun.slurm.lint.launch import MODULES, Launch
from dsrun.slurm.lint.shell import ShellCommand, commands, expand
from dsrun.slurm.lint.words import literal, redirects

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_MACRO = re.compile(r"\$(\$|local_rank\b|\{local_rank\})")
_ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
# Options that only say how the ranks start and meet. Those of the second group are switches.
_MEETING = {
    "torchrun": ("nnodes nproc_per_node node_rank master_addr master_port rdzv_backend rdzv_endpoint rdzv_id rdzv_conf"
                 " max_restarts monitor_interval", "standalone"),
    "accelerate": ("num_processes num_machines machine_rank main_process_ip main_process_port rdzv_backend rdzv_conf"
                   " max_restarts mixed_precision num_cpu_threads_per_process", "multi_gpu same_network"),
    "deepspeed": ("num_gpus num_nodes master_addr master_port node_rank", "no_ssh no_local_rank"),
}  # fmt: skip
_COUNTS = {"torchrun": "nproc_per_node", "accelerate": "num_processes", "deepspeed": "num_gpus"}
# Of srun: what only says where the tasks start, or how their output looks.
_SRUN_VALUED = {"-N": "nodes", "-n": "ntasks", "-c": "cpus-per-task"}
_SRUN = frozenset({"nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "jobid"})
_SRUN_SWITCHES = frozenset({"-l", "-u", "-K", "--label", "--unbuffered", "--kill-on-bad-exit", "--export=ALL"})
RANKS = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}
ON_COMMAND_LINE = "dsrun render-slurm -- python my_train.py …"


@dataclass(frozen=True, kw_only=True)
class Program:
    """`words` are the program's, as they are written. `count` is the launcher's number of workers, of each node or, of
    Accelerate, of all; "" if it gives none. `env` are the assignments before it, as written, `set_here` the values that
    the launcher sets, `srun` its numbers; `has_ranks`: tasks of srun get torch's variables from SLURM's."""

    kind: str
    words: tuple[str, ...]
    count: str = ""
    nodes: str = ""
    max_restarts: str | None = None
    env: tuple[str, ...] = ()
    set_here: Mapping[str, str] = field(default_factory=dict)
    srun: Mapping[str, str] | None = None
    has_ranks: bool = False


def refusal(name: str, line: int, what: str, fix: str) -> UsageError:
    """The error for a line that is not converted."""
    return UsageError(f"{name}:{line}: {what}", fix=fix)


def read_program(command: ShellCommand, launch: Launch, variables: Mapping[str, str], name: str) -> Program:
    """What `command`, which holds `launch`, starts. Raises UsageError for a part that is not understood."""
    return _Reader(command.line, variables, name).read(list(command.raw), launch)


@dataclass(frozen=True)
class _Reader:
    line: int
    variables: Mapping[str, str]
    name: str

    def refuse(self, what: str, fix: str = ON_COMMAND_LINE) -> UsageError:
        return refusal(self.name, self.line, what, fix)

    def read(self, raw: list[str], launch: Launch) -> Program:
        if any(map(redirects, raw)):
            raise self.refuse(
                "the output is redirected", "remove the redirection: the job's log has the output (#SBATCH --output)"
            )
        env, srun, raw = self._before(raw)
        raw = [word for each in raw for word in self._spread(each)]
        env, has_ranks = self._ranks(env)
        options, words = self._behind_launcher(raw, launch)
        if launch.kind == "accelerate" and (file := _accelerate_defaults()):
            raise self.refuse(f"Accelerate also reads {file}", "move it away, and give its settings to the program")
        local_rank = launch.kind == "deepspeed" and "no_local_rank" not in options
        if "torch.distributed.launch" in raw and "use_env" not in options:
            raise self.refuse("torch.distributed.launch passes --local-rank, which is not converted", "write torchrun")
        if local_rank:
            at = next((at for at, word in enumerate(words[1:], 1) if not word.startswith("-")), len(words))
            words[at + 1 : at + 1] = ['"--local_rank=$LOCAL_RANK"']
        if len(words) < 2:
            raise self.refuse(f"no program behind {launch.name}", "write it behind its options")
        macro = (word for word in words[1:] if _MACRO.search(literal(word) or ""))
        if launch.kind in ("torchrun", "accelerate") and (word := next(macro, None)):
            raise self.refuse(f"{word}: torchrun replaces $$ and $local_rank", "have the program read LOCAL_RANK")
        set_here = {}
        if precision := options.get("mixed_precision"):
            set_here["ACCELERATE_MIXED_PRECISION"] = precision
        if threads := options.get("num_cpu_threads_per_process"):
            set_here["OMP_NUM_THREADS"] = threads
        return Program(
            kind=launch.kind, words=tuple(words), count=options.get(_COUNTS.get(launch.kind, ""), ""),
            nodes=options.get("nnodes") or options.get("num_machines") or options.get("num_nodes") or "",
            max_restarts=options.get("max_restarts"), env=tuple(env), set_here=set_here, srun=srun,
            has_ranks=has_ranks,
        )  # fmt: skip

    def _before(self, raw: list[str]) -> tuple[list[str], dict[str, str] | None, list[str]]:
        """The assignments before the launcher, srun's numbers, and the rest."""
        env: list[str] = []
        srun: dict[str, str] | None = None
        while raw:
            if _ASSIGNMENT.fullmatch(raw[0]):
                env.append(raw.pop(0))
            elif raw[0] == "exec":
                raw.pop(0)
            elif raw[0] == "srun" and srun is None:
                srun, raw = self._srun(raw[1:])
            elif raw[0] in ("bash", "sh") and raw[1:2] == ["-c"] and len(raw) == 3:
                raw = self._inner(raw[2], env)
            else:
                break
        return env, srun, raw

    def _value(self, raw: str) -> str:
        """The text of a word, with the script's own variables in it filled in."""
        text = literal(raw)
        if text is None:
            text = raw.strip('"')
            for _ in range(3):
                text = expand(text, self.variables)
        return text

    def _spread(self, raw: str) -> Iterator[str]:
        """The words of an unquoted variable that holds a command, else the word."""
        found = re.fullmatch(r"\$(?:(\w+)|\{(\w+)\})", raw)
        held = self.variables.get(found[1] or found[2], "") if found else ""
        # Quotes in it would be words' own, and what the scanner keeps private is a dollar sign.
        if " " not in held or re.search(r"['\"\\\ue000`]|\$\([^(]", held):
            yield raw
        else:
            yield from re.findall(r"(?:\$\(\([^)]*\)\)|\S)+", held)

    def _srun(self, raw: list[str]) -> tuple[dict[str, str], list[str]]:
        found: dict[str, str] = {}
        while raw and raw[0].startswith("-"):
            word = raw.pop(0)
            option, equals, value = word.partition("=")
            if word in _SRUN_SWITCHES or option == "--kill-on-bad-exit":
                continue
            long = _SRUN_VALUED.get(option[:2], "") if not option.startswith("--") else option[2:]
            if long not in _SRUN:
                raise self.refuse(f"srun {word} is not converted", "remove it, or set it for the job with #SBATCH")
            joined = option[2:] if not option.startswith("--") else ""
            found[long] = self._value(value if equals else joined or (raw.pop(0) if raw else ""))
        return found, raw

    def _inner(self, word: str, env: list[str]) -> list[str]:
        """The words of the one command of `bash -c`, with its exports in `env`."""
        text = literal(word)
        inner = commands(text) if text is not None else []
        rest = [each for each in inner if not all(map(_ASSIGNMENT.fullmatch, _declared(each.raw)))]
        if len(rest) != 1 or rest[0] is not inner[-1]:
            raise self.refuse("of bash -c one command in single quotes is converted", "write the command behind srun")
        for each in inner[:-1]:
            env += _declared(each.raw)
        return list(rest[0].raw)

    def _ranks(self, env: list[str]) -> tuple[list[str], bool]:
        """`env` without the variables that torch.distributed.run sets; whether they were those of SLURM's tasks."""
        given = {found[1]: found[2].strip("\"'") for each in env if (found := _ASSIGNMENT.fullmatch(each))}
        ranks = {name: given[name].strip("${}") for name in RANKS if name in given}
        for name, value in ranks.items():
            if value not in (RANKS[name], "SLURM_NPROCS" if name == "WORLD_SIZE" else "") and value:
                raise self.refuse(f"{name}={given[name]} is not converted", f"write {name}=${RANKS[name]}")
        return [each for each in env if each.partition("=")[0] not in RANKS], {"RANK", "WORLD_SIZE"} <= set(ranks)

    def _behind_launcher(self, raw: list[str], launch: Launch) -> tuple[dict[str, str], list[str]]:
        """The launcher's options, and the program as `python FILE ARGS`."""
        texts = [literal(each) for each in raw]
        head = PurePosixPath(texts[0] or "") if raw else PurePosixPath()
        if launch.kind == "program":
            if not _PYTHON.fullmatch(head.name):
                raise self.refuse(f"{' '.join(raw[:1])} … is not converted", "write python before the script")
            return {}, raw
        python = str(head.parent / "python") if len(head.parts) > 1 else "python"
        module = next((at for at, text in enumerate(texts) if text in MODULES), None)
        if module is not None:
            python, rest = raw[0], raw[module + 1 :]
        elif head.name in ("torchrun", "deepspeed", "accelerate"):
            rest = raw[2 if head.name == "accelerate" else 1 :]
        else:
            raise self.refuse(f"{raw[0]} … is not converted", "write the launcher behind srun, without another command")
        valued, switches = (set(each.split()) for each in _MEETING[launch.kind])
        options: dict[str, str] = {}
        while rest and rest[0].startswith(("-", "$")) and rest[0] not in ("-m", "--module", "--"):
            word = rest.pop(0)
            option, equals, value = word.lstrip("-").partition("=")
            option = option.replace("-", "_")
            if option in switches | {"use_env"} and not equals:
                options[option] = "yes"
            elif option in valued and (equals or rest):
                options[option] = self._value(value if equals else rest.pop(0))
            else:
                raise self.refuse(
                    f"{launch.name} {word} is not converted", "give its setting to the program, and remove it here"
                )
        rest = rest[1:] if rest[:1] == ["--"] else rest
        return options, [python, *(["-m", *rest[1:]] if rest[:1] in (["-m"], ["--module"]) else rest)]


def _declared(raw: tuple[str, ...]) -> tuple[str, ...]:
    return raw[1:] if raw[0] == "export" else raw


def quoted(words: tuple[str, ...]) -> list[str] | None:
    """The texts of words in which the shell expands nothing; None where it expands something in one."""
    texts = [literal(each) for each in words]
    return None if None in texts else [str(each) for each in texts]


def command_line(words: tuple[str, ...]) -> str:
    """Words as one command of a shell, with as little quoting as they need."""
    texts = [literal(each) for each in words]
    return " ".join(word if text is None else shlex.quote(text) for word, text in zip(words, texts, strict=True))


def _accelerate_defaults() -> Path | None:
    """The file of `accelerate config`, where there is one."""
    from dsrun.models.folder import hub_home  # which other launchers do without

    folder = hub_home(os.environ) / "accelerate"
    return next((file for kind in ("yaml", "json") if (file := folder / f"default_config.{kind}").is_file()), None)
