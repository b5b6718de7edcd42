"""Shell completion: what click's protocol answers in each shell, and the scripts in real shells."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.cli.main import COMMANDS
from dsrun.recipe.flags import all_flags
from tests.cli.test_startup import HEAVY, IMPORTED

FLAGS_BEHIND = (
    "train --",
    "prepare --",
    "launch -- dsrun train --",
    "render-slurm -- train --",
    "config check x -- --",
)


@pytest.fixture
def answer(dsrun, environ):
    """What bash is given for a line, as (type, value); the word under the cursor is the last, empty behind a space."""

    def ask(line, python=()):
        words = ["dsrun", *line.split(" ")]
        environ.update({"_DSRUN_COMPLETE": "bash_complete", "COMP_WORDS": "\n".join(words)})
        environ["COMP_CWORD"] = str(len(words) - 1)
        done = dsrun(python=python)
        assert done.returncode == 0
        assert python or done.stderr == ""
        ask.stderr = done.stderr
        return [tuple(each.split(",", 1)) for each in done.stdout.splitlines() if each]

    return ask


@pytest.fixture
def values(answer):
    """The words alone."""
    return lambda line: [value for _, value in answer(line)]


def test_completion_of_commands(values):
    assert values("") == list(COMMANDS)
    assert values("con") == ["config"]
    assert values("check") == ["checkpoint", "check-slurm"]
    assert values("config ch") == ["check"]
    assert values("wheel l") == ["list"]


@pytest.mark.parametrize("name", COMMANDS)
def test_completion_offers_flags_of_command(values, dsrun, environ, name):
    """Each that its help shows, under its first name."""
    flags = values(f"{name} --")
    del environ["_DSRUN_COMPLETE"]
    helps = [dsrun(each, "--help").stdout for each in ((name, "train") if name == "data" else (name,))]
    shown = "".join(helps).replace(",", " ").split()
    assert "--help" in flags
    assert [flag for flag in flags if not flag.startswith("--no-") and flag not in (*shown, "--help")] == []
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("line", FLAGS_BEHIND)
def test_completion_offers_all_training_flags(values, line):
    """Those of dsrun and of Transformers, each once, also behind the `--` of a command that starts a training."""
    flags = [flag for flag in values(line) if not flag.startswith("--no-")]
    assert sorted(flags) == sorted({flag.shown for flag in all_flags().values()} | {"--help"})


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("train --learning", ["--learning_rate"]),
        ("train --learning-", ["--learning-rate"]),
        ("train --train-f", ["--train-file"]),
        ("train --train_f", ["--train_file"]),
        ("train --output_d", ["--output_dir"]),
        ("train --no_warm", ["--no_warm"]),
        ("render-slurm --gpus_per_n", ["--gpus_per_node"]),
        ("plan --gpu_mem", []),
    ],
)
def test_completion_keeps_hyphens_or_underscores(values, line, offered):
    """As they were typed, where the command takes both; and never both of them."""
    assert values(line) == offered


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("train --task ", ["auto", "seq2seq", "causal-lm", "dpo", "distill"]),
        ("train --optim adamw_torch_f", ["adamw_torch_fused"]),
        ("train --weights_dtype bf", ["bfloat16"]),
        ("train --resume n", ["never"]),
        ("launch -- dsrun train --on-nan s", ["stop", "skip"]),
        ("config --zero ", ["0", "1", "2", "3"]),
        ("gpus --format = j", ["json"]),
        ("launch --nproc a", ["auto"]),
        ("plan --gpus b2", ["b200"]),
        ("build-wheel --arch cp", ["cpu"]),
        ("build-wheel --arch l4,h200-n", ["l4,h200-nvl-141gb"]),
        ("gpus rtx-309", ["rtx-3090", "rtx-3090-ti"]),
        ("render-slurm --nodes 2 -- ", ["train"]),
        ("launch -- dsrun ", ["train"]),
    ],
)
def test_completion_of_values(values, line, offered):
    """Choices, the words of a placeholder, GPUs, programs."""
    assert values(line) == offered


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("train --train-file ", "file"),
        ("train --train_file da", "file"),
        ("train --output ", "dir"),
        ("train --model ", "dir"),
        ("train --deepspeed ds", "file"),
        ("config check ", "file"),
        ("config -o ", "file"),
        ("doctor --for ", "file"),
        ("launch --hostfile ", "file"),
        ("launch ", "file"),
        ("launch -- ", "file"),
        ("launch -- python my", "file"),
        ("verify-wheel ", "file"),
        ("wheel list ", "dir"),
        ("monitor ", "dir"),
        ("checkpoint list ", "dir"),
    ],
)
def test_completion_leaves_paths_to_the_shell(answer, line, kind):
    assert answer(line) == [(kind, line.rpartition(" ")[2])]


@pytest.mark.parametrize("line", ["plan --nodes ", "gpus --gres ", "nosuch ", "launch -- dsrun nosuch --"])
def test_completion_of_what_cannot_be_known(answer, line):
    """A number, free text and unknown commands: no words, and no message."""
    assert [value for kind, value in answer(line) if kind == "plain"] == []


@pytest.mark.parametrize("command", ["monitor", "export", "stacks", "checkpoint list", "compare runs/one"])
def test_completion_of_run_folders(values, here, command):
    """Runs of runs/ first; a name that bash would split is left out."""
    for name in ("one", "two", "with space", "no-run"):
        (here / "runs" / name).mkdir(parents=True)
        (here / "runs" / name / "run.json").touch()
    (here / "runs/no-run/run.json").unlink()
    assert values(f"{command} ") == ["runs/one", "runs/two"]
    assert values(f"{command} runs/t") == ["runs/two"]


@pytest.mark.parametrize("line", ["", "train --", "build-wheel --arch a100"])
def test_completion_imports_no_heavy_library(answer, line):
    assert answer(line, python=("-X", "importtime"))
    imported = IMPORTED.findall(answer.stderr)
    assert {name.partition(".")[0] for name in imported} & HEAVY == set()
    commands = {name for name in imported if name.startswith("dsrun.cli.")}
    assert len(commands - {"dsrun.cli.main", "dsrun.cli.options", "dsrun.cli.completion"}) <= (3 if line else 0)


def test_completion_in_zsh_has_meaning_of_flags(dsrun, environ):
    """zsh reads three lines for each: type, value, meaning; a joined value is offered with its flag."""
    environ.update({"_DSRUN_COMPLETE": "zsh_complete", "COMP_WORDS": "dsrun doctor --node-r", "COMP_CWORD": "2"})
    kind, value, meaning = dsrun().stdout.splitlines()
    assert (kind, value) == ("plain", "--node-rank")
    assert meaning.startswith("which of the nodes this is")
    environ.update({"COMP_WORDS": "dsrun train --weights_dtype=bf"})
    assert dsrun().stdout.splitlines() == ["plain", "--weights_dtype=bfloat16", "_"]


def test_completion_in_fish_has_meaning_of_commands(dsrun, environ):
    """A comma would end the line in its script."""
    environ.update({"_DSRUN_COMPLETE": "fish_complete", "COMP_WORDS": "dsrun repo", "COMP_CWORD": "repo"})
    assert dsrun().stdout == "plain,report\twrite curves; findings and settings of runs as one HTML page\n"


@pytest.mark.parametrize("asked", ["tcsh_source", "tcsh_complete", "bash", "1"])
def test_completion_of_unknown_shell_is_one_line(dsrun, environ, asked):
    environ["_DSRUN_COMPLETE"] = asked
    done = dsrun()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: _DSRUN_COMPLETE={asked} is not known (use one of bash_source, zsh_source, fish_source)\n"
    )


INSTALL = (Path(__file__).parents[2] / "docs/install.md").read_text(encoding="utf-8")
# What a user writes once, from the table there.
SETUP = {shell: line.replace("\\|", "|") for line, shell in re.findall(r"\| `([^`]*=(\w+)_source [^`]*)` \|", INSTALL)}
# Each writes the words that the shell would insert or list, a line each.
IN_SHELLS = {
    "bash": """{setup}
complete -p dsrun >&2 || exit 9
COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_dsrun_completion dsrun
printf '%s\\n' "${COMPREPLY[@]}"
""",
    # Outside of a line that is typed, these are not there.
    "zsh": """compdef() { [[ $2 == dsrun ]] || exit 9 }
compadd() { print -l -- ${(P)@[-1]} }
_describe() { print -l -- ${${(P)@[3]}%%:*} }
{setup}
words=(${=1}) CURRENT=$#words
_dsrun_completion
""",
    "fish": """{setup}
complete -C $argv[1]
""",
}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("dsrun con", ["config"]),
        ("dsrun doctor --node", ["--node-rank", "--nodes"]),
        ("dsrun train --zer", ["--zero"]),
        ("dsrun train --task causal", ["causal-lm"]),
        ("dsrun render-slurm -- train --learning_r", ["--learning_rate"]),
    ],
)
@pytest.mark.parametrize("shell", IN_SHELLS)
def test_completion_in_real_shell(here, environ, shell, line, offered):
    """The line of the documentation, read by the shell itself."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    environ["HOME"] = str(here)
    argv = [program, *{"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]]
    argv += ["-c", IN_SHELLS[shell].replace("{setup}", SETUP[shell]), *([] if shell == "fish" else [shell]), line]
    done = subprocess.run(argv, cwd=here, env=environ, capture_output=True, text=True, check=True)
    assert sorted(line.partition("\t")[0] for line in done.stdout.splitlines() if line) == offered, done.stderr


def test_version_as_json(dsrun):
    """Versions of what is installed, null for what is not; in either order of the flags."""
    done = dsrun("--version", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert list(found) == re.findall(r'^  "(\w+)":', INSTALL, re.MULTILINE)
    assert found["version"] == 1
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["platform"].split() == [os.uname().sysname, os.uname().release, os.uname().machine]
    assert found["packages"]["torch"]
    assert dsrun("--format=json", "--version").stdout == done.stdout


@pytest.mark.parametrize("args", [["--format", "json"], ["--format", "json", "gpus"]], ids=" ".join)
def test_format_without_version(dsrun, args):
    done = dsrun(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --format json without --version (a command's own --format follows its name)\n"
