"""The arguments of `dsrun render-slurm` for the job of another script, where that is understood whole.

The program gets the same arguments and variables. Everything else is refused with its line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from dsrun.errors import UsageError
from dsrun.hardware.gres import parse_gres
from dsrun.options import flag_of
from dsrun.slurm.lint.convert_launch import (
    LOCAL_RANK,
    PATTERNS,
    RANKS,
    LaunchReader,
    NotConverted,
    ScriptProgram,
    command_line,
    literal,
    quoted,
    references,
    same_on_nodes,
)
from dsrun.slurm.lint.convert_setup import ScriptSetup, read_setup
from dsrun.slurm.lint.launch import ScriptCommand, rules
from dsrun.slurm.lint.read_script import JobScript, SbatchDirective
from dsrun.slurm.render.notation import parse_gpus
from dsrun.slurm.render.options import options
from dsrun.slurm.render.spec import RESERVED_OPTIONS

_ALWAYS = (("requeue", None), ("open-mode", "append"), ("export", "ALL"))
_GPUS = ("gpus-per-node", "gpus", "gpus-per-task", "gpus-per-socket", "tres-per-task")


def convert(script: JobScript, name: str) -> list[str]:
    """Arguments for render-slurm; `name` is the script's in messages. Raises UsageError for what is not converted."""
    if len(script.launches) != 1:
        count = "nothing that trains was" if not script.launches else f"{len(script.launches)} launches were"
        fix = "dsrun render-slurm -- python my_train.py …"
        raise UsageError(f"{name}: {count} found, and a job has one", fix=fix)
    try:
        return _Conversion(script, script.launches[0]).arguments(PurePosixPath(name).name)
    except NotConverted as error:
        raise UsageError(f"{name}:{error.message}", fix=error.fix) from None


@dataclass(frozen=True)
class _Conversion:
    script: JobScript
    launch: ScriptCommand

    def arguments(self, file: str) -> list[str]:
        _refuse_shell(self.script)
        args = [word for each in self.script.directives for word in _directive(each)]
        if not self.script.get("job-name") and file != "-" and re.fullmatch(r"[\w.+-]+", file):
            args = ["--job-name", file, *args]  # sbatch's own default
        command, *behind = self.script.commands[self.launch.at :]
        if command.end == "&" and all(each.words[0] != "wait" for each in behind):
            raise NotConverted(command.line, "background")
        if command.end not in ("\n", ";", "&", "&&"):
            raise NotConverted(command.line, "before", end=command.end)
        moved = self.script.get("chdir") is not None
        setup = read_setup(self.script.commands, self.launch.at, moved=moved)
        program = LaunchReader(command.line, setup.settled(self.script.variables)).read(list(command.raw), self.launch)
        args += self._counts(program)
        args += ["--max-restarts", program.max_restarts] if program.max_restarts not in (None, "0") else []
        args += [*setup.args, *(word for each in program.set_here.items() for word in ("--env", "=".join(each)))]
        return [*args, "--", *self._words(program, setup)]

    def _counts(self, program: ScriptProgram) -> Iterator[str]:
        """Nodes, GPUs, workers and CPUs of each node."""
        script, srun = self.script, program.srun or {}
        nodes, tasks = script.nodes, script.tasks_per_node
        asked = script.get("nodes")
        if nodes is None or tasks is None or (asked and not (asked.value or "").isdigit()):
            raise NotConverted(asked.line if asked else self.launch.line, "nodes")
        if program.srun is not None:
            tasks = int(srun["ntasks-per-node"]) if srun.get("ntasks-per-node", "").isdigit() else tasks
            total = srun.get("ntasks", "")
            tasks = int(total) // nodes if total.isdigit() else tasks
            wanted = srun.get("nodes") or (str(nodes) if not total.isdigit() or int(total) >= nodes else total)
            all_nodes = wanted in (str(nodes), "$SLURM_NNODES", "$SLURM_JOB_NUM_NODES")
            if not all_nodes or total not in ("", str(tasks * nodes), "$SLURM_NTASKS"):
                raise NotConverted(self.launch.line, "part", nodes=nodes)
        yield from ("--nodes", str(nodes)) if asked or nodes > 1 else ()
        gpus, spelled = self._gpus(tasks)
        yield from spelled
        workers = self._workers(program, nodes, gpus, tasks)
        yield from () if workers in (gpus, gpus or 1) else ("--nproc", str(workers))
        yield from self._cpus(tasks, gpus, srun.get("cpus-per-task"))

    def _gpus(self, tasks: int) -> tuple[int, list[str]]:
        """GPUs of each node, and the option for them, with their type."""
        found = [each for option in _GPUS if (each := self.script.get(option))]
        gres = self.script.get("gres")
        if gres and re.search(r"\b(shard|mps)\b", gres.value or ""):
            raise NotConverted(gres.line, "share")
        in_gres = sum(each.count for each in parse_gres(gres.value or "")) if gres else 0
        if not found and not in_gres and self.script.get("exclusive"):
            raise NotConverted(self.launch.line, "exclusive_gpus")
        if not found:
            return in_gres, [] if in_gres else ["--gpus-per-node", "0"]
        if len(found) > 1 or in_gres:
            raise NotConverted(found[-1].line, "gpus_twice")
        first, parsed = found[0], parse_gpus(found[0].value or "")
        count = self.script.gpus if parsed else None
        if count is None or parsed is None or (first.option == "gpus-per-task" and tasks > 1):
            raise NotConverted(first.line, "gpus", option=first.option)
        return count, ["--gpus-per-node", f"{parsed[0]}:{count}" if parsed[0] else str(count)]

    def _workers(self, program: ScriptProgram, nodes: int, gpus: int, tasks: int) -> int:
        line, given = self.launch.line, program.count
        if program.srun is None and nodes > 1:
            raise NotConverted(line, "alone", nodes=nodes)
        if program.kind == "program":
            if tasks * nodes > 1 and not program.has_ranks and program.srun is not None:
                ranks = " ".join(f"{name}=${value}" for name, value in RANKS.items())
                raise NotConverted(line, "own_rank", ranks=ranks)
            return tasks if program.srun is not None else 1
        if program.nodes.isdigit() and int(program.nodes) != nodes:
            raise NotConverted(line, "other_nodes", given=program.nodes, nodes=nodes)
        if ":" in program.nodes:
            raise NotConverted(line, "elastic", given=program.nodes, nodes=nodes)
        if not given:
            return 1 if program.kind == "torchrun" else gpus or 1
        if given.isdigit():
            share, rest = divmod(int(given), nodes if program.kind == "accelerate" else 1)
            if not rest and 0 < share <= (gpus or share):
                return share
        elif gpus and (given in ("gpu", "auto") or re.search(r"GPU|nvidia-smi -L", given)):
            return gpus
        raise NotConverted(line, "workers", given=given, gpus=gpus)

    def _cpus(self, tasks: int, gpus: int, of_srun: str | None) -> Iterator[str]:
        """CPUs of the one task of each node: those of all its tasks in the script."""
        per_task, per_gpu = self.script.number("cpus-per-task"), self.script.number("cpus-per-gpu")
        if of_srun and of_srun not in (str(per_task), "$SLURM_CPUS_PER_TASK"):
            raise NotConverted(self.launch.line, "cpus")
        if per_task or tasks > 1:
            yield from ("--cpus-per-task", str((per_task or 1) * tasks))
        elif per_gpu and gpus:
            yield from ("--cpus-per-task", str(per_gpu * gpus))

    def _words(self, program: ScriptProgram, setup: ScriptSetup) -> list[str]:
        """The words of the program; a shell on the nodes where it has to expand something in them."""
        in_env = [
            f"export {each};" for each in program.env if not PATTERNS["rendezvous"].fullmatch(each.partition("=")[0])
        ]
        words = [*program.words, *in_env]
        before = []
        for command, unknown in setup.needed(words, self._on_node):
            first = command.words[1].partition("=")[0] if command.words[0] == "export" else ""
            if unknown or PATTERNS["rendezvous"].fullmatch(first):
                raise _unreadable(command.line, unknown or first)
            before.append(f"{' '.join(command.raw)};")
        for name, usable in (ref for word in words if word != LOCAL_RANK for ref in references(word)):
            if not usable or name in setup.arrays or not setup.may_read(name, self._on_node):
                raise _unreadable(self.launch.line, name)
        plain = quoted(program.words)
        if plain is not None and not before and not in_env:
            return plain
        if literal(program.words[0]) is None:
            raise NotConverted(self.launch.line, "program", word=program.words[0])
        return ["bash", "-c", " ".join([*before, *in_env, "exec", command_line(program.words)])]

    def _on_node(self, name: str) -> bool:
        if name == "SLURM_CPUS_PER_TASK":
            return self.script.tasks_per_node == 1 and self.script.get("cpus-per-task") is not None
        return same_on_nodes(name)


def _unreadable(line: int, name: str) -> NotConverted:
    shown = f"${name}" if re.fullmatch(r"\w+", name) else name
    return NotConverted(line, "unreadable", shown=shown)


def _refuse_shell(script: JobScript) -> None:
    """Containers, another shell, and whatever makes a command depend on others."""
    first, *_ = lines = script.text.splitlines() or [""]
    if not PATTERNS["shell"].fullmatch(first):
        raise NotConverted(1, "shell", first=first)
    for number, text in enumerate(lines, 1):
        if "<<" in text.partition("#")[0]:
            raise NotConverted(number, "here_document")
        if re.match(r"#SBATCH\s+(het|pack)job\b", text):
            raise NotConverted(number, "heterogeneous")
    for each in script.commands:
        for word in each.words:
            if word.startswith("--container-") or PurePosixPath(word).name in ("apptainer", "singularity"):
                raise NotConverted(each.line, "container", word=word)
        if PATTERNS["control"].fullmatch(each.words[0]):
            raise NotConverted(each.line, "control", word=each.words[0])


def _directive(each: SbatchDirective) -> Iterator[str]:
    """The options for a directive that stands for itself."""
    flag = {each.metadata["sbatch"]: flag_of(each) for each in options().values() if each.metadata.get("sbatch")}
    if each.option in rules()["convert"]["counted"] or (each.option, each.value) in _ALWAYS:
        return
    if each.option == "signal" and (signal := PATTERNS["signal"].fullmatch(each.value or "")):
        yield from ("--signal-lead", signal[1])
    elif each.option == "no-requeue":
        yield "--no-requeue"
    elif not (each.known and each.option) or each.option in (*RESERVED_OPTIONS, *rules()["convert"]["placed"]):
        why = RESERVED_OPTIONS.get(each.option) if each.known else "sbatch has no such option"
        raise NotConverted(
            each.line, "option", option=(each.option or each.value or "").lstrip("-"), why=f": {why}" if why else ""
        )
    elif each.option == "exclusive" and each.value is not None:
        raise NotConverted(each.line, "exclusive", value=each.value)
    elif each.option in flag:
        yield from [flag[each.option]] if each.value is None else [flag[each.option], each.value]
    else:
        yield from ("--sbatch", each.option if each.value is None else f"{each.option}={each.value}")
