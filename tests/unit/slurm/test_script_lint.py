"""Findings about sbatch scripts as users write them, and what bash and sbatch read in them."""

import tomllib
from pathlib import Path

import pytest

from dsrun.slurm.lint.launch import rules
from dsrun.slurm.lint.read_script import read_script
from dsrun.slurm.lint.script_check import check_script
from dsrun.system.shell import commands

TESTS = Path(__file__).parents[2]
SCRIPTS = TESTS / "data" / "sbatch"
EXPECTED = tomllib.loads((SCRIPTS / "expected.toml").read_text())
HEAD = "#!/bin/bash\n#SBATCH --time=1:00:00\n"


def codes(text):
    return [each.code.removeprefix("script_") for each in check_script(text, "job.sh")]


def test_every_script_has_expected_findings_listed():
    assert set(EXPECTED) == {each.stem for each in SCRIPTS.glob("*.sh")}
    assert all(not found for name, found in EXPECTED.items() if name.startswith("good-"))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_findings_of_a_posted_script(name):
    found = check_script((SCRIPTS / f"{name}.sh").read_text(), "job.sh")
    prefixed = [f"{each.where.removeprefix('job.sh:')} {each.code.removeprefix('script_')}" for each in found]
    assert prefixed == EXPECTED[name]


@pytest.mark.parametrize("script", sorted((TESTS / "golden" / "slurm").glob("*.sh")), ids=lambda path: path.stem)
def test_rendered_scripts_have_no_finding(script):
    """But those for a job that was rendered without --time, or with a log in a folder."""
    assert set(codes(script.read_text())) <= {"no_time", "log_folder"}


def test_messages_are_filled_in_and_tell_no_secret():
    for script in SCRIPTS.glob("*.sh"):
        for each in check_script(script.read_text(), "job.sh"):
            assert "NotAReal" not in each.message + each.fix
            assert "0123456789abcdef" not in each.message + each.fix
            assert not any(
                f"{{{word}}}" in each.message + each.fix for word in ("nodes", "gpus", "flag", "given", "launcher")
            )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("#SBATCH -N 2\nsrun torchrun --standalone --nproc_per_node 1 x.py\n", "standalone"),
        ("#SBATCH -N 2\nsrun torchrun --rdzv_endpoint a:2000 --nproc_per_node 1 x.py\n", "nodes_missing"),
        ("#SBATCH --gres=gpu:4\ntorchrun x.py\n", "ranks_default"),
        ("#SBATCH --gres=gpu:4\ntorchrun --nproc-per-node=2 x.py\n", "gpus_idle"),
        ("torchrun --nproc-per-node=2 x.py\n", "no_gpus"),
        ("#SBATCH --gpus-per-node=4\nsrun python x.py\n", "tasks_below_gpus"),
        ("#SBATCH --signal=B:USR1@60\npython x.py\n", "signal_without_trap"),
        (
            "#SBATCH -N 2\n#SBATCH --gres=gpu:1\nsrun torchrun --nnodes 2 --nproc_per_node 1 --node_rank 0 "
            "--master_addr a x.py\n",
            "rank_constant",
        ),
        ("#SBATCH -N 2\nsrun bash -c 'export MASTER_ADDR=$(hostname); python x.py'\n", "master_per_task"),
    ],
)
def test_finding_of_one_mistake(body, code):
    assert codes(HEAD + body) == [code, *(["no_gpus"] if code in ("standalone", "nodes_missing") else [])]


def test_dos_line_ends_are_the_only_finding():
    assert codes("#!/bin/bash\r\npython x.py\r\n") == ["crlf"]


def test_every_rule_is_used_by_a_check():
    source = (Path("dsrun/slurm/lint").resolve() / "script_check.py").read_text()
    checks = {
        row["code"] for table in rules().values() if isinstance(table, list) for row in table if isinstance(row, dict)
    }
    assert [code for code in rules()["rules"] if f'"{code}"' not in source and code not in checks] == []


def test_commands_of_bash():
    text = 'A="$(f "$X" | head -n 1)" # don\'t\nif b; then\n  srun --label \\\n    c > log 2>&1 &\nfi\n'
    text += 'cat <<E\nd "\nE\ne\n'
    assert [(each.line, each.words, each.end) for each in commands(text)] == [
        (1, ('A=$(f "$X" | head -n 1)',), "\n"),
        (2, ("if", "b"), ";"),
        (2, ("then",), "\n"),
        (3, ("srun", "--label", "c", ">", "log", "2>&1"), "&"),
        (5, ("fi",), "\n"),
        (6, ("cat",), "\n"),
        (9, ("e",), "\n"),
    ]


@pytest.mark.parametrize(
    "text", ["", "#!", "'", '"$(', "#SBATCH", "#SBATCH -\n", "x <<E", "a \\", "#SBATCH --=\n", "srun\n"]
)
def test_odd_texts_are_read(text):
    check_script(text, "job.sh")


def test_options_in_an_unknown_array_are_not_called_missing():
    lines = 'args=(--nnodes=2 --rdzv-endpoint=a:1)\nif a; then\nargs+=(--x)\nfi\nsrun torchrun "${args[@]}" train.py\n'
    text = HEAD.replace("\n", "\n#SBATCH --nodes=2 --gpus-per-node=4\n", 1) + lines
    codes = {each.code for each in check_script(text, "job.sh")}
    assert not codes & {"script_nodes_missing", "script_no_rendezvous", "script_ranks_default"}


@pytest.mark.parametrize(
    ("directives", "gpus"),
    [
        ("--nodes=4 --ntasks=4 --gpus-per-task=8", 8),
        ("--nodes=2 --ntasks-per-node=4 --gpus-per-task=1", 4),
        ("--nodes=2 --gpus=16", 8),
        ("--nodes=3 --gpus=16", None),
        ("--gpus-per-task=2", 2),
    ],
)
def test_gpus_of_each_node(directives, gpus):
    """However a script asks for them."""
    lines = "".join(f"#SBATCH {each}\n" for each in directives.split())
    assert read_script(f"#!/bin/bash\n{lines}srun ./x\n").gpus == gpus
