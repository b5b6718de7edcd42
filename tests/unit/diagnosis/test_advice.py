"""What the causes advise: flags that exist, and nothing that only dsrun's own runs can do for those of others."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dsrun.cli.completion import training_flags
from dsrun.cli.main import COMMANDS, cli
from dsrun.datafiles import toml_beside
from dsrun.diagnosis import taxonomy
from dsrun.diagnosis.diagnose import of_logs
from dsrun.diagnosis.rules import causes

_FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
# Each as `PROGRAM … --flag`.
OTHERS = {
    "conda": {"--help"},
    "deepspeed": {"--launcher"},
    "docker run": {"--shm-size"},
    "hydra": {"--config-name", "--config-path"},
    "kubectl logs": {"--previous"},
    "ldd": {"--version"},
    "nvcc": {"--list-gpu-arch"},
    "pip install": {"--force-reinstall", "--no-build-isolation", "--only-binary"},
    "python": {"--version"},
    "sbatch": {
        "--deadline", "--exclude", "--export", "--gres", "--mem", "--nodes", "--ntasks-per-node", "--requeue",
        "--signal", "--time",
    },
    "srun": {"--cpus-per-task", "--ntasks-per-node", "--pty"},
    "torchrun": {"--nnodes", "--rdzv-endpoint"},
}  # fmt: skip
LIST = Path(__file__).parents[2] / "data" / "causes" / "kinds.txt"
KINDS = [tuple(line.split(" | ", 2)) for line in LIST.read_text().splitlines() if not line.startswith("#")]
# Only dsrun's supervisor finds these.
OWN = {"rank_hung", "running", "running_silent"}


def bare_flags(text: str) -> list[str]:
    """The flags in a text that are not those of a program which it names right before them."""
    for program, flags in OTHERS.items():
        text = re.sub(rf"\b{program} (?:{'|'.join(flags)})(?![\w-])", "", text)
    return _FLAG.findall(re.sub(r"`dsrun [^`]*`", "", text))


def for_everyone() -> Iterator[str]:
    """Texts that are printed whoever started the run."""
    for code, cause in causes().items():
        for sign in cause.signs if code not in OWN else ():
            yield from (sign.means, sign.fix)
        if code not in OWN:
            yield from (cause.means, cause.other_fix or cause.fix)
    for row in toml_beside(taxonomy.__file__)["row"]:
        yield from (row.get("means", ""), row.get("fix", ""))


def test_advice_for_every_run_names_no_flag_of_dsrun_alone() -> None:
    """A flag is said with its program, as a script of the user's own does not have those of dsrun."""
    assert {text: flags for text in for_everyone() if (flags := bare_flags(text))} == {}


@pytest.mark.parametrize("code", sorted(causes()))
def test_flags_in_fix_exist_in_dsrun(code: str) -> None:
    """A flag without a program is one of a command of dsrun."""
    context = click.Context(cli)
    known = {flag for each in training_flags() for flag in (*each.opts, *each.secondary_opts)}
    if flags := {*bare_flags(causes()[code].fix), *bare_flags(causes()[code].means)} - known:
        for command in filter(None, (cli.get_command(context, name) for name in COMMANDS)):
            known |= {flag for each in command.get_params(context) for flag in (*each.opts, *each.secondary_opts)}
        assert flags <= known


def test_only_runs_of_dsrun_are_said_to_resume() -> None:
    """A script of the user's own may well start from its beginning."""
    assert [
        text for text in for_everyone() if re.search(r"(it|the run|command) resumes|dsrun train reshapes", text)
    ] == []


@pytest.mark.parametrize(("code", "word", "log"), KINDS)
def test_advice_is_for_the_kind_of_the_failure(code: str, word: str, log: str) -> None:
    """Where the line tells more than its cause, so does the advice."""
    verdict = of_logs({"other.log": log.replace("\\n", "\n").encode()})
    assert verdict.cause.code == code, verdict.evidence
    assert word in verdict.fix
