"""The program of `dsrun launch`: dsrun's own training, a script, a module, an executable, or a torchrun line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsrun.errors import UsageError
from dsrun.launch.compat import parse_torchrun, torchrun_words
from dsrun.slurm.render.program import WORKER, Program, any_program, train_program

if TYPE_CHECKING:
    from dsrun.cli.launch import Options


def without_torchrun(options: Options, words: tuple[str, ...]) -> tuple[Options, tuple[str, ...], str]:
    """Options and program with those of a torchrun line taken over, and the run's name in its rendezvous."""
    after = torchrun_words(words)
    if after is None:
        return options, words, ""
    found = parse_torchrun(after)
    said: dict[str, Any] = {
        "nodes": found.nodes,
        "node_rank": found.node_rank,
        "nproc": found.nproc,
        "master_addr": found.master_addr,
        "master_port": found.master_port,
        "max_restarts": found.max_restarts,
    }
    for name, value in said.items():
        own = getattr(options, name)
        if value is not None and own is not None and own != value:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} {own} for dsrun launch, but {value} for torchrun", fix="give it once")
    options = replace(options, **{name: value for name, value in said.items() if value is not None})
    python = words[0] if words[1:2] == ("-m",) else "python"
    begin = {(): (python,), ("--module",): (python, "-m"), ("--no-python",): ()}[found.mode]
    return options, (*begin, *found.words), found.rdzv_id or ""


def program_of(words: tuple[str, ...]) -> Program:
    """What is to run. dsrun's own training is told from everything else, and a script must be there."""
    first, *rest = words
    if Path(first).name == "dsrun" and rest[:1] == ["train"]:
        return train_program(rest[1:])
    if first == "-m" or first.endswith(".py"):
        words = ("python", *words)
    found = any_program(words)
    if found.mode == ("--module",) and found.entry in (WORKER, "dsrun"):
        own = list(found.words)
        if found.entry == "dsrun" and own[:1] != ["train"]:
            raise UsageError("of dsrun's commands only train can be launched", fix="-- dsrun train --model …")
        return train_program(own[1:] if found.entry == "dsrun" else own)
    if found.file and not Path(found.file).is_file() and (found.mode == () or "/" in found.file):
        raise UsageError(f"there is no file {found.file}", fix="-- path/to/my_train.py --flag value")
    return found
