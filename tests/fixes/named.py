"""What the fixes of all errors and findings name: commands of dsrun, and flags."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

import dsrun
from dsrun.cli.main import cli
from dsrun.datafiles import read_toml
from dsrun.diagnosis.rules import causes
from dsrun.findings.finding import tables
from dsrun.recipe.compat.removed import vocabulary

PACKAGE = Path(dsrun.__file__).parent
FLAG = re.compile(r"(?<![\w-])--([a-z][\w-]*)")
# With a flag, a sub-command or the end of a quotation behind it: not of "a run of dsrun saves".
COMMAND = re.compile(r"\bdsrun ([a-z][a-z0-9-]*)(?=[`\"')]| [A-Z-])")
# Another program's line, up to where the prose goes on.
OTHERS = re.compile(
    r"\b(?:docker|apptainer|srun|sbatch|salloc|scontrol|sacctmgr|pip|conda|nvidia-smi|numactl|ps|du|git|hf|modelscope|ip|ss"
    r"|tar|ssh|kubectl|mount|deepspeed|torchrun|accelerate|cmake|gcc|nvcc|dmesg|uv|python|hydra|bash"
    r"|mokutil|fuser|ldd)"
    r"(?: run)? [^,;()`]*"
)
TABLES = {
    "recipe/checks.toml": ("checks",),
    "zero/rules.toml": ("config", "flags"),
}
# Of the user's own program, of docker in a list of its flags, and of launchers whose command line is read.
OF_OTHERS = {"flag", "ipc", "num_processes", "rdzv_backend", "rdzv_endpoint"}
# Of srun, torchrun and containers in the scripts that `dsrun check-slurm` reads.
OF_SCRIPTS = {"export", "nnodes", "nv", "overlap", "rdzv_id", "signal", "standalone"}
# Whose flags a fix may name, by the place of its text; the first that fits.
COMMANDS_OF = {
    "slurm/cluster/plan_gpus": ("plan",),
    "wheel": ("build-wheel", "verify-wheel", "wheel"),
    "cli/wheel": ("build-wheel", "verify-wheel", "wheel"),
    "kubernetes": ("render-k8s", "train"),
    "cli/kubernetes": ("render-k8s", "train"),
    "slurm/jobs/submit": ("render-slurm",),
    "slurm/jobs": ("jobs", "monitor", "stacks", "doctor"),
    "slurm": ("render-slurm", "check-slurm", "train"),
    "recipe": ("train", "launch", "export"),
    "train/data/reading/row_lookup": ("data",),
    "train": ("train", "export"),
    "zero/memory": ("plan", "train"),
    "zero": ("config", "plan", "train"),
    "diagnosis": ("train", "render-slurm", "launch"),
    "report": ("report",),
    "cli/report": ("report",),
    "cli/init": ("init", "train", "plan"),
    "cli/plan": ("plan", "train"),
}


class NamedFix(NamedTuple):
    """A fix, and where it is: a code of a table, or a module."""

    place: str
    text: str


def coded() -> dict[str, str]:
    """The fixes that have a code, and name a command or a flag."""
    found = dict(_variants("", tables()))
    for file, parts in TABLES.items():
        for part in parts:
            found |= {code: row.get("fix", "") for code, row in read_toml(PACKAGE / file)[part].items()}
    found |= read_toml(PACKAGE / "slurm/render/reserved.toml")
    lines = [f"dsrun {name}" for name in cli.list_commands(click.Context(cli))]
    return {code: fix for code, fix in found.items() if FLAG.search(fix) or any(line in fix for line in lines)}


def _variants(above: str, rows: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, row in rows.items():
        if isinstance(row, dict):
            if "message" in row:
                yield above + name, row.get("fix", "")
            yield from _variants(f"{above}{name}.", row)


def fixes() -> Iterator[NamedFix]:
    """Every fix: of the tables, and of what is raised in the code."""
    for code, fix in coded().items():
        yield NamedFix(code, fix)
    for cause in causes().values():
        for fix in (cause.fix, cause.other_fix, *(sign.fix for sign in cause.signs)):
            yield NamedFix(f"diagnosis: {cause.code}", fix)
    for path in sorted(PACKAGE.rglob("*.toml")):
        place = str(path.relative_to(PACKAGE))
        yield from (NamedFix(place, text) for text in _below_fix(read_toml(path)))
    for rows in read_toml(PACKAGE / "train/base/notices.toml").values():
        yield from (NamedFix("train/base/notices.toml", text) for text in rows.values())
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "fix":
                yield from (NamedFix(str(path.relative_to(PACKAGE)), text) for text in _texts(node.value))


def _below_fix(value: Any, key: str = "") -> Iterator[str]:
    """The texts of all keys that are called fix, in whatever table."""
    if isinstance(value, str) and key == "fix":
        yield value
    elif isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else ((key, each) for each in value):
            yield from _below_fix(each, name)


def _texts(node: ast.AST) -> Iterator[str]:
    """The literals of an expression, with `…` for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
    elif isinstance(node, ast.IfExp | ast.BoolOp | ast.BinOp):
        for each in ast.iter_child_nodes(node):
            yield from _texts(each)


def commands() -> dict[str, set[str]]:
    """The flags of each command and sub-command of dsrun, without dashes and with underscores."""
    found: dict[str, set[str]] = {}

    def add(command: click.Command, name: str) -> set[str]:
        flags = {_folded(each) for param in command.params for each in (*param.opts, *param.secondary_opts)}
        ctx = click.Context(command)
        for below in command.list_commands(ctx) if isinstance(command, click.Group) else ():
            inner = command.get_command(ctx, below)
            assert inner is not None
            flags |= add(inner, below)
        found[name] = flags | {"help", "debug", "format"}
        return flags

    add(cli, "dsrun")
    for name in ("train", "prepare", "data"):
        found[name] |= set(vocabulary()) | {f"no_{each}" for each in vocabulary()}
    return found


def _folded(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def wrong_names(fix: NamedFix, known: dict[str, set[str]]) -> Iterator[str]:
    """What a fix names that is not there."""
    own = OTHERS.sub("", fix.text)
    for match in COMMAND.finditer(own):
        if match[1] not in known:
            yield f"dsrun {match[1]}"
    named = [name for name in known if f"dsrun {name}" in fix.text]
    of_place = next((names for place, names in COMMANDS_OF.items() if fix.place.startswith(place)), tuple(known))
    scripts = OF_SCRIPTS if fix.place == "slurm/lint/rules.toml" else set()
    flags = OF_OTHERS.union(scripts, *(known[name] for name in (*of_place, *named)))
    yield from (f"--{flag}" for flag in FLAG.findall(own) if _folded(flag) not in flags)
