"""The arguments of `dsrun render-slurm` for the job of another script, where that is understood whole.

The program gets the same arguments and variables. Everything else is refused with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from dsrun.errors import UsageError
from dsrun.hardware.gres import parse_gres
from dsrun.options import flag_of
from dsrun.slurm.lint.convert_launch import (
    ON_COMMAND_LINE,
    RANKS,
    Program,
    command_line,
    quoted,
    read_program,
    refusal,
)
from dsrun.slurm.lint.convert_setup import RENDEZVOUS, Setup, needed_assignments, read_setup
from dsrun.slurm.lint.job import Directive, JobScript, rules
from dsrun.slurm.lint.launch import Launch, launches
from dsrun.slurm.lint.words import literal, references, same_on_nodes
from dsrun.slurm.render.notation import parse_gpus
from dsrun.slurm.render.options import options
from dsrun.slurm.render.spec import RESERVED_OPTIONS

# What says how many tasks there are, or which GPUs: read together, below.
_COUNTED = frozenset(
    {"nodes", "gpus", "gpus-per-node", "gpus-per-task", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task"}
    | {"cpus-per-gpu"}
)
_GPUS = ("gpus-per-node", "gpus", "gpus-per-task", "gpus-per-socket", "tres-per-task")
_SIGNAL = re.compile(r"(?:B:)?(?:SIG)?(?:USR1|10)@(\d+)")
_PLACED = frozenset({"ntasks-per-core", "ntasks-per-socket", "overcommit", "export-file"})
_CONTROL = re.compile(r"if|then|else|elif|fi|for|while|until|do|done|case|esac|function|[{}!\[]|\[\[|\(\(")


def convert(script: JobScript, name: str) -> list[str]:
    """Arguments for render-slurm; `name` is the script's in messages. Raises UsageError for what is not converted."""
    if len(script.launches) != 1:
        count = "nothing that trains was" if not script.launches else f"{len(script.launches)} launches were"
        raise UsageError(f"{name}: {count} found, and a job has one", fix=ON_COMMAND_LINE)
    return _Conversion(script, name, script.launches[0]).arguments()


@dataclass(frozen=True)
class _Conversion:
    script: JobScript
    name: str
    launch: Launch

    def arguments(self) -> list[str]:
        self._refuse_shell()
        args = [word for each in self.script.directives for word in self._directive(each)]
        if not self.script.get("job-name") and self.name != "-" and re.fullmatch(r"[\w.+-]+", self._file):
            args = ["--job-name", self._file, *args]  # sbatch's own default
        at = self._place()
        command = self.script.commands[at]
        if command.end == "&" and ("wait",) not in [each.words[:1] for each in self.script.commands[at + 1 :]]:
            raise self._refuse(command.line, "a program in the background is not converted", "remove the &")
        if command.end not in ("\n", ";", "&", "&&"):
            raise self._refuse(command.line, f"a launch before {command.end} is not converted", "end the line there")
        setup = read_setup(self.script.commands, at, self.name, moved=self.script.get("chdir") is not None)
        program = read_program(command, self.launch, setup.settled(self.script.variables), self.name)
        args += self._counts(program)
        args += [] if program.max_restarts in (None, "0") else ["--max-restarts", str(program.max_restarts)]
        args += [
            *setup.args,
            *(word for name, text in program.set_here.items() for word in ("--env", f"{name}={text}")),
        ]
        return [*args, "--", *self._words(program, setup)]

    @property
    def _file(self) -> str:
        return PurePosixPath(self.name).name

    def _refuse(self, line: int, what: str, fix: str) -> UsageError:
        return refusal(self.name, line, what, fix)

    def _refuse_shell(self) -> None:
        """Containers, another shell, and whatever makes a command depend on others."""
        first = self.script.text.partition("\n")[0]
        if not re.fullmatch(r"#!\s*/(usr/)?bin/(env )?(ba)?sh\s*", first):
            raise self._refuse(
                1, f"{first} is not converted", "#!/bin/bash; what a login shell would read, with --setup-file"
            )
        for number, text in enumerate(self.script.text.splitlines(), 1):
            if "<<" in text.partition("#")[0]:
                raise self._refuse(number, "a here-document is not converted", "put the text into a file")
            if re.match(r"#SBATCH\s+(het|pack)job\b", text):
                raise self._refuse(number, "a heterogeneous job is not converted", "one job for each part")
        for each in self.script.commands:
            for word in each.words:
                if word.startswith("--container-") or PurePosixPath(word).name in ("apptainer", "singularity"):
                    raise self._refuse(
                        each.line, f"{word}: containers are not converted",
                        "dsrun render-slurm --apptainer IMAGE (or --container-image IMAGE) -- python my_train.py …",
                    )  # fmt: skip
            if _CONTROL.fullmatch(each.words[0]):
                raise self._refuse(each.line, f"{each.words[0]} … is not converted", "write the commands one by one")

    def _place(self) -> int:
        switches = frozenset(rules()["srun"]["switches"])
        holds = (bool(list(launches([each], self.script.variables, switches))) for each in self.script.commands)
        return next(at for at, found in enumerate(holds) if found)

    def _directive(self, each: Directive) -> Iterator[str]:
        """The options for a directive that stands for itself."""
        flag = {each.metadata["sbatch"]: flag_of(each) for each in options().values() if each.metadata.get("sbatch")}
        signal = _SIGNAL.fullmatch(each.value or "") if each.option == "signal" else None
        if each.option in _COUNTED or (each.option, each.value) in (
            ("requeue", None), ("open-mode", "append"), ("export", "ALL"),
        ):  # fmt: skip
            return
        if signal:
            yield from ("--signal-lead", signal[1])
        elif each.option == "no-requeue":
            yield "--no-requeue"
        elif not each.known or each.option in RESERVED_OPTIONS or each.option in _PLACED:
            why = RESERVED_OPTIONS.get(each.option) if each.known else "sbatch has no such option"
            fix = f"remove the line: {why}" if why else "remove the line"
            raise self._refuse(each.line, f"--{each.option.lstrip('-')} is not converted", fix)
        elif each.option == "exclusive" and each.value is not None:
            raise self._refuse(each.line, f"--exclusive={each.value} is not converted", "#SBATCH --exclusive")
        elif each.option in flag:
            yield from [flag[each.option]] if each.value is None else [flag[each.option], each.value]
        else:
            yield from ("--sbatch", each.option if each.value is None else f"{each.option}={each.value}")

    def _counts(self, program: Program) -> Iterator[str]:
        """Nodes, GPUs, workers and CPUs of each node."""
        script, srun = self.script, dict(program.srun or {})
        nodes, tasks = script.nodes, script.tasks_per_node
        asked = script.get("nodes")
        line = asked.line if asked else self.launch.line
        if nodes is None or tasks is None or (asked and not (asked.value or "").isdigit()):
            raise self._refuse(line, "the number of nodes, or of tasks on each, is not fixed", "#SBATCH --nodes=N")
        if program.srun is not None:
            tasks = int(srun["ntasks-per-node"]) if srun.get("ntasks-per-node", "").isdigit() else tasks
            total = srun.get("ntasks", "")
            tasks = int(total) // nodes if total.isdigit() else tasks
            wanted = srun.get("nodes") or (str(nodes) if not total.isdigit() or int(total) >= nodes else total)
            all_nodes = wanted in (str(nodes), "$SLURM_NNODES", "$SLURM_JOB_NUM_NODES")
            if not all_nodes or total not in ("", str(tasks * nodes), "$SLURM_NTASKS"):
                raise self._refuse(self.launch.line, "srun uses a part of the job", f"srun --nodes={nodes}")
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
            raise self._refuse(gres.line, "a share of a GPU is not converted", "#SBATCH --gpus-per-node=1")
        in_gres = sum(each.count for each in parse_gres(gres.value or "")) if gres else 0
        if in_gres and not found:
            return in_gres, []
        if not found:
            if self.script.get("exclusive"):
                fix = "#SBATCH --gpus-per-node=N, 0 for none"
                raise self._refuse(self.launch.line, "whether the nodes have GPUs is not known", fix)
            return 0, ["--gpus-per-node", "0"]
        first, parsed = found[0], parse_gpus(found[0].value or "")
        if len(found) > 1 or in_gres:
            raise self._refuse(found[-1].line, "GPUs are asked for twice", "keep one of them")
        count = self.script.gpus if parsed else None
        if count is None or parsed is None or (first.option == "gpus-per-task" and tasks > 1):
            raise self._refuse(first.line, f"--{first.option} is not converted", "#SBATCH --gpus-per-node=N")
        return count, ["--gpus-per-node", f"{parsed[0]}:{count}" if parsed[0] else str(count)]

    def _workers(self, program: Program, nodes: int, gpus: int, tasks: int) -> int:
        """Processes of each node."""
        line, given = self.launch.line, program.count
        if program.srun is None and nodes > 1:
            raise self._refuse(line, f"it starts on the first of {nodes} nodes alone", "write srun before it")
        if program.kind == "program":
            if tasks * nodes > 1 and not program.has_ranks and program.srun is not None:
                fix = " ".join(f"{name}=${value}" for name, value in RANKS.items())
                fix = f"srun bash -c '{fix} exec python …', if torch's variables are what it reads"
                raise self._refuse(line, "a program that finds its rank by itself is not converted", fix)
            return tasks if program.srun is not None else 1
        if program.nodes.isdigit() and int(program.nodes) != nodes:
            raise self._refuse(line, f"it is for {program.nodes} nodes, and the job has {nodes}", "make them the same")
        if ":" in program.nodes:
            raise self._refuse(line, f"nodes {program.nodes} are not converted", f"write {nodes}")
        if not given:
            return 1 if program.kind == "torchrun" else gpus or 1
        if given.isdigit():
            share, rest = divmod(int(given), nodes if program.kind == "accelerate" else 1)
            if not rest and 0 < share <= (gpus or share):
                return share
        elif gpus and (given in ("gpu", "auto") or re.search(r"GPU|nvidia-smi -L", given)):
            return gpus
        raise self._refuse(line, f"{given} workers are not converted: each node has {gpus} GPUs", "write their number")

    def _cpus(self, tasks: int, gpus: int, of_srun: str | None) -> Iterator[str]:
        """CPUs of the one task of each node: those of all its tasks in the script."""
        per_task, per_gpu = self.script.number("cpus-per-task"), self.script.number("cpus-per-gpu")
        if of_srun and of_srun not in (str(per_task), "$SLURM_CPUS_PER_TASK"):
            raise self._refuse(self.launch.line, "srun --cpus-per-task is not converted", "#SBATCH --cpus-per-task=N")
        if per_task or tasks > 1:
            yield from ("--cpus-per-task", str((per_task or 1) * tasks))
        elif per_gpu and gpus:
            yield from ("--cpus-per-task", str(per_gpu * gpus))

    def _words(self, program: Program, setup: Setup) -> list[str]:
        """The words of the program; a shell on the nodes where it has to expand something in them."""
        line = self.launch.line
        in_env = [f"export {each};" for each in program.env if not RENDEZVOUS.fullmatch(each.partition("=")[0])]
        words = [*program.words, *in_env]
        before = []
        for command, unknown in needed_assignments(setup, words, self._may_read):
            first = command.words[1].partition("=")[0] if command.words[0] == "export" else ""
            if unknown or RENDEZVOUS.fullmatch(first):
                raise self._unreadable(command.line, unknown or first)
            before.append(f"{' '.join(command.raw)};")
        own = {name for _, names, _ in setup.assigned for name in names} | setup.known
        local = {'"--local_rank=$LOCAL_RANK"'}
        for ref, usable in (ref for word in words if word not in local for ref in references(word)):
            if not usable or ref in setup.arrays or (ref not in own and not self._may_read(ref)):
                raise self._unreadable(line, ref)
        plain = quoted(program.words)
        if plain is not None and not before and not in_env:
            return plain
        text = " ".join([*before, *in_env, "exec", command_line(program.words)])
        if literal(program.words[0]) is None:
            raise self._refuse(line, f"{program.words[0]} is not converted", "write python before the script")
        return ["bash", "-c", text]

    def _may_read(self, name: str) -> bool:
        if name == "SLURM_CPUS_PER_TASK":
            return self.script.tasks_per_node == 1 and self.script.get("cpus-per-task") is not None
        return same_on_nodes(name)

    def _unreadable(self, line: int, ref: str) -> UsageError:
        shown = f"${ref}" if re.fullmatch(r"\w+", ref) else ref
        return self._refuse(
            line, f"{shown} has its value from the script, which the rendered one does not run",
            "write the value, or compute it in the program; without export where only the launcher reads it",
        )  # fmt: skip
