"""The program behind a launch as `dsrun render-slurm` takes it, with what the launcher would have set for it.

A word is read as it is written: its text if no shell would change it, else the variables in it."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dsrun.datafiles import patterns_beside
from dsrun.errors import UsageError
from dsrun.launch.program import PYTHON
from dsrun.slurm.lint.launch import MODULES, ScriptCommand, rules
from dsrun.system.shell import ASSIGNMENT, commands, expand

PATTERNS = patterns_beside(__file__, "rules.toml", table="convert_patterns")


def literal(raw: str) -> str | None:
    """What the shell makes of a word in which it expands nothing; None for one in which it does, or redirects."""
    found = []
    for quote, piece in _pieces(raw):
        if quote == "'":
            found.append(piece)
        elif re.search(r"[$`]" if quote else r"[$`*?\[\]{}<>~&]", re.sub(r"\\.", "", piece, flags=re.DOTALL)):
            return None
        else:
            kept = r'\\([$`"\\\n])' if quote else r"\\(.)"
            found.append(re.sub(kept, lambda each: each[1].strip("\n"), piece, flags=re.DOTALL))
    return "".join(found)


def redirects(raw: str) -> bool:
    """Whether a word is, or has in it, a redirection."""
    return any(not quote and re.search(r"[<>]", re.sub(r"\\.", "", piece)) for quote, piece in _pieces(raw))


def references(raw: str) -> Iterator[tuple[str, bool]]:
    """The variables in a word, and whether each can be read on a node: not for what no name alone stands for."""
    for quote, piece in _pieces(raw):
        if quote == "'":
            continue
        for found in PATTERNS["reference"].finditer(re.sub(r"\\.", "", piece, flags=re.DOTALL)):
            name, arithmetic = found[1] or found[2], found[3]
            if arithmetic is not None:
                yield from ((each, True) for each in re.findall(r"[A-Za-z_]\w*", arithmetic))
            elif name and not name[0].isdigit():
                yield name, True
            else:
                following = piece[piece.find(found[0]) :]
                yield following[:2] if found[0] == "$" else name or "`", False


def same_on_nodes(name: str) -> bool:
    """Whether a variable that the script does not set has one value in the batch script and in the workers."""
    return bool(PATTERNS["of_job"].fullmatch(name)) or not PATTERNS["of_node"].fullmatch(name)


def _pieces(raw: str) -> Iterator[tuple[str, str]]:
    """The parts of a word with the quote around each, "" for none."""
    for found in PATTERNS["piece"].finditer(raw):
        kind = str(found.lastgroup)
        yield {"single": "'", "double": '"', "plain": ""}[kind], found[kind]


# What the launcher sets by its options.
_SETS = {"mixed_precision": "ACCELERATE_MIXED_PRECISION", "num_cpu_threads_per_process": "OMP_NUM_THREADS"}
# Of srun: what only says where the tasks start, or how their output looks.
_SRUN_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task"}
_SRUN = frozenset({"--nodes", "--ntasks", "--ntasks-per-node", "--cpus-per-task", "--jobid"})
_SRUN_SWITCHES = frozenset({"-l", "-u", "-K", "--label", "--unbuffered", "--kill-on-bad-exit", "--export=ALL"})
RANKS = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}
LOCAL_RANK = '"--local_rank=$LOCAL_RANK"'


class NotConverted(UsageError):
    """A line of a script is not converted. The message begins with its number; the rest, and what to do, is a row of
    rules.toml, [convert.refused], filled with `words`."""

    def __init__(self, line: int, key: str, **words: object) -> None:
        what, fix = (text.format(**words) for text in rules()["convert"]["refused"][key])
        super().__init__(f"{line}: {what}", fix=fix)


@dataclass(frozen=True, kw_only=True)
class ScriptProgram:
    """`words` are the program's, as they are written. `count` is the launcher's number of workers, of each node or, of
    Accelerate, of all; "" if it gives none. `env` are the assignments before it, as written, `set_here` the values that
    the launcher sets, `srun` its numbers; `has_ranks`: tasks of srun get torch's variables from SLURM's."""

    kind: str
    words: tuple[str, ...]
    count: str
    nodes: str
    max_restarts: str | None
    env: tuple[str, ...]
    set_here: Mapping[str, str]
    srun: Mapping[str, str] | None
    has_ranks: bool


@dataclass(frozen=True)
class LaunchReader:
    """Reads what a command of the script, at `line`, starts."""

    line: int
    variables: Mapping[str, str]

    def read(self, raw: list[str], launch: ScriptCommand) -> ScriptProgram:
        """The program of a command that holds `launch`. Raises NotConverted for a part that is not understood."""
        if any(map(redirects, raw)):
            raise NotConverted(self.line, "redirected")
        env, srun, raw = self._before(raw)
        raw = [word for each in raw for word in self._spread(each)]
        env, has_ranks = self._ranks(env)
        options, words = self._behind_launcher(raw, launch)
        self._refuse_settings(raw, options, launch)
        if launch.kind == "deepspeed" and "no_local_rank" not in options:
            at = next((at for at, word in enumerate(words[1:], 1) if not word.startswith("-")), len(words))
            words.insert(at + 1, LOCAL_RANK)
        if len(words) < 2:
            raise NotConverted(self.line, "no_program", name=launch.name)
        macro = next((word for word in words[1:] if PATTERNS["macro"].search(literal(word) or "")), None)
        if macro and launch.kind in ("torchrun", "accelerate"):
            raise NotConverted(self.line, "macro", macro=macro)
        count, nodes = rules()["convert"][launch.kind]["counts"] if options else ("", "")
        return ScriptProgram(
            kind=str(launch.kind), words=tuple(words), count=options.get(count, ""), nodes=options.get(nodes, ""),
            max_restarts=options.get("max_restarts"), env=tuple(env), srun=srun, has_ranks=has_ranks,
            set_here={variable: options[name] for name, variable in _SETS.items() if options.get(name)},
        )  # fmt: skip

    def _refuse_settings(self, raw: Sequence[str], options: Mapping[str, str], launch: ScriptCommand) -> None:
        """What a launcher takes from elsewhere, or gives to the program."""
        if launch.kind == "accelerate" and (file := _accelerate_defaults()):
            raise NotConverted(self.line, "defaults", file=file)
        if "torch.distributed.launch" in raw and "use_env" not in options:
            raise NotConverted(self.line, "local_rank")

    def _before(self, raw: list[str]) -> tuple[list[str], dict[str, str] | None, list[str]]:
        """The assignments before the launcher, srun's numbers, and the rest."""
        env: list[str] = []
        srun: dict[str, str] | None = None
        while raw:
            if ASSIGNMENT.fullmatch(raw[0]):
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
        return expand(raw.strip('"'), self.variables) if text is None else text

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
            if not option.startswith("--"):
                option, value = _SRUN_SHORT.get(word[:2], ""), word[2:].removeprefix("=")
            if option not in _SRUN:
                raise NotConverted(self.line, "srun", word=word)
            found[option[2:]] = self._value(value if value or equals else raw.pop(0) if raw else "")
        return found, raw

    def _inner(self, word: str, env: list[str]) -> list[str]:
        """The words of the one command of `bash -c`, with its exports in `env`."""
        inner = commands(literal(word) or "")
        exports = [each.raw[each.raw[0] == "export" :] for each in inner]
        only_sets = [all(map(ASSIGNMENT.fullmatch, each)) for each in exports]
        if not inner or only_sets != [True] * (len(inner) - 1) + [False]:
            raise NotConverted(self.line, "inner")
        env += (each for names in exports[:-1] for each in names)
        return list(inner[-1].raw)

    def _ranks(self, env: list[str]) -> tuple[list[str], bool]:
        """`env` without the variables that torch.distributed.run sets; whether they were those of SLURM's tasks."""
        given = {found[1]: found[2].strip("\"'") for each in env if (found := ASSIGNMENT.fullmatch(each))}
        ranks = {name: given[name].strip("${}") for name in RANKS if name in given}
        for name, value in ranks.items():
            if value not in (RANKS[name], "SLURM_NPROCS" if name == "WORLD_SIZE" else "") and value:
                raise NotConverted(self.line, "rank", name=name, given=given[name], slurm=RANKS[name])
        return [each for each in env if each.partition("=")[0] not in RANKS], {"RANK", "WORLD_SIZE"} <= set(ranks)

    def _behind_launcher(self, raw: list[str], launch: ScriptCommand) -> tuple[dict[str, str], list[str]]:
        """The launcher's options, and the program as `python FILE ARGS`."""
        texts = [literal(each) for each in raw]
        head = PurePosixPath(texts[0] or "") if raw else PurePosixPath()
        if launch.kind == "program":
            if not PYTHON.fullmatch(head.name):
                raise NotConverted(self.line, "no_python", word=" ".join(raw[:1]))
            return {}, raw
        python = str(head.parent / "python") if len(head.parts) > 1 else "python"
        module = next((at for at, text in enumerate(texts) if text in MODULES), None)
        if module is not None:
            python, rest = raw[0], raw[module + 1 :]
        elif head.name in ("torchrun", "deepspeed", "accelerate"):
            rest = raw[2 if head.name == "accelerate" else 1 :]
        else:
            raise NotConverted(self.line, "wrapped", word=raw[0])
        table = rules()["convert"][launch.kind]
        options: dict[str, str] = {}
        while rest and rest[0].startswith(("-", "$")) and rest[0] not in ("-m", "--module", "--"):
            word = rest.pop(0)
            option, equals, value = word.lstrip("-").partition("=")
            option = option.replace("-", "_")
            if option in (*table["switches"], "use_env") and not equals:
                options[option] = "yes"
            elif option in (*table["counts"], *table["others"]) and (equals or rest):
                options[option] = self._value(value if equals else rest.pop(0))
            else:
                raise NotConverted(self.line, "launcher_option", name=launch.name, word=word)
        rest = rest[1:] if rest[:1] == ["--"] else rest
        return options, [python, *(["-m", *rest[1:]] if rest[:1] in (["-m"], ["--module"]) else rest)]


def quoted(words: Sequence[str]) -> list[str] | None:
    """The texts of words in which the shell expands nothing; None where it expands something in one."""
    texts = [text for each in words if (text := literal(each)) is not None]
    return texts if len(texts) == len(words) else None


def command_line(words: Sequence[str]) -> str:
    """Words as one command of a shell, with as little quoting as they need."""
    return " ".join(word if (text := literal(word)) is None else shlex.quote(text) for word in words)


def _accelerate_defaults() -> Path | None:
    """The file of `accelerate config`, where there is one."""
    from dsrun.models.folder import hub_home  # which other launchers do without

    folder = hub_home(os.environ) / "accelerate"
    return next((file for kind in ("yaml", "json") if (file := folder / f"default_config.{kind}").is_file()), None)
