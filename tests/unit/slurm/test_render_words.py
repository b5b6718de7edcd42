"""The program gets exactly its words, and nothing else runs: rendered scripts under the real bash."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsrun.slurm.program import any_program, slug, train_program
from dsrun.slurm.quote import shell_quote
from dsrun.slurm.render import render
from dsrun.slurm.site import Site
from tests.unit.slurm.stand_ins import Shell, spec_of

NASTY = [
    "it's", 'a "b" c', "$(touch pwned)", "`touch pwned`", "; touch pwned;", "two\nlines", "cr\r\nlf", "tab\t", " ",
    "", "-x", "--nnodes=9", "--", "$HOME", "${local_rank}", "$local_rank", "$$", "a\\", "\\n", "*", "~", "!x", "#x",
    "ă ț ü", "\u2028", "\x01\x7f", "%j", "{{ name }}", "{% raw %}", "\n#SBATCH --nodes=9", "'", "=x", "$'a'", "&", "|",
]  # fmt: skip
WORD = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12),
    st.lists(st.sampled_from(NASTY), max_size=3).map("".join),
)
# Each example starts a dozen processes.
SLOW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def rendered(shell: Shell, program, **options) -> str:
    return render(spec_of(**options), program, Site(python=shell.python, own_python=shell.python))


def fresh(folder: str) -> Shell:
    return Shell(Path(folder))


@SLOW
@given(st.lists(WORD, max_size=5), WORD)
def test_a_script_gets_its_words(words, script):
    with tempfile.TemporaryDirectory() as folder:
        shell = fresh(folder)
        name = script if script and not script.startswith("-") else "my.py"
        done = shell.run(rendered(shell, any_program(["python", name, *words])))
        assert done.received == [name, *words]
        assert (done.code, shell.left()) == (0, {"runs"})


@SLOW
@given(st.lists(WORD, max_size=5), WORD.filter(bool))
def test_an_executable_gets_its_words(words, executable):
    with tempfile.TemporaryDirectory() as folder:
        shell = fresh(folder)
        program = any_program(["./" + executable, *words])
        done = shell.run(rendered(shell, program))
        assert done.launched[-len(words) - 3 :][:2] == ("--no-python", "--")
        assert done.received == ["./" + executable, *words]
        assert shell.left() == {"runs"}


@SLOW
@given(st.lists(WORD, max_size=5), WORD)
def test_training_gets_its_flags_and_its_folder(words, output):
    with tempfile.TemporaryDirectory() as folder:
        shell = fresh(folder)
        # A path is no longer than 255 bytes a part, and has an end.
        place = "out/" + output.replace("/", "").strip(".")[:20]
        done = shell.run(rendered(shell, train_program(words, output=place)))
        assert done.received == ["dsrun.train", *words]
        assert done.environment["DSRUN_OUTPUT"] == f"{shell.folder}/{place}"
        assert (shell.folder / place / "logs").is_dir()
        assert shell.left() == {"out"}


@SLOW
@given(st.dictionaries(st.sampled_from(["A", "b_2", "LONG_NAME"]), WORD, min_size=1), WORD, WORD)
def test_environment_and_files_are_what_they_are_called(variables, venv, setup):
    with tempfile.TemporaryDirectory() as folder:
        shell = fresh(folder)
        place = shell.tools / ("v" + venv.replace("/", "")[:20])
        (place / "bin").mkdir(parents=True)
        (place / "bin" / "activate").write_text("export ACTIVATED=yes")
        file = shell.tools / ("s" + setup.replace("/", "")[:20])
        file.write_text("export SET_UP=yes")
        env = [f"{name}={value}" for name, value in variables.items()]
        script = rendered(shell, any_program(["./x"]), env=env, venv=str(place), setup_file=[str(file)])
        done = shell.run(script)
        wanted = {**variables, "ACTIVATED": "yes", "SET_UP": "yes"}
        assert {name: done.environment[name] for name in wanted} == wanted
        assert shell.left() == {"runs"}


@settings(max_examples=200, deadline=None)
@given(st.lists(WORD, min_size=1, max_size=20))
def test_a_quoted_word_is_one_word_on_one_line(words):
    line = " ".join(map(shell_quote, words))
    assert "\n" not in line
    assert "\r" not in line  # sbatch refuses a script with \r\n
    done = subprocess.run(["bash", "-c", f'printf "%s\\0" {line}'], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words


def test_a_name_that_is_no_text_is_passed_on_byte_for_byte(shell):
    name = os.fsdecode(b"caf\xe9.py")
    done = shell.run(rendered(shell, any_program(["python", name])))
    assert done.received == [name]


def test_torch_fills_in_what_the_stand_in_does():
    from torch.distributed.elastic.utils.api import macros

    words = [word for word in NASTY if "\0" not in word]
    argv = any_program(["python", "$x.py", *words]).argv
    assert macros.substitute(list(argv), "7") == ["--", "$x.py", *words]


@pytest.mark.parametrize(
    ("words", "launched", "name"),
    [
        (["python", "a/my_train.py", "--x", "1"], ("--", "a/my_train.py", "--x", "1"), "my_train"),
        (["python3", "-m", "pkg.mod", "-x"], ("--module", "--", "pkg.mod", "-x"), "pkg.mod"),
        (["python", "-u", "x.py"], ("--no-python", "--", "python", "-u", "x.py"), "python"),
        (["python", "-c", "print(1)"], ("--no-python", "--", "python", "-c", "print(1)"), "python"),
        (["bash", "-c", "a b"], ("--no-python", "--", "bash", "-c", "a b"), "bash"),
        (["./tools/run.sh"], ("--no-python", "--", "./tools/run.sh"), "run.sh"),
    ],
)
def test_what_stands_behind_the_dashes_is_told_to_torchrun(words, launched, name):
    program = any_program(words)
    assert program.argv == launched
    assert program.name == name


def test_a_python_named_by_its_path_is_the_interpreter(shell):
    script = render(spec_of(), any_program([shell.python, "x.py"]), Site(python="/no/such/python"))
    assert shell.run(script).received == ["x.py"]


@pytest.mark.parametrize("name", ["a b", "../../etc", "ü", "-x", "$(touch pwned)", "a\nb", "", "." * 9])
def test_a_folders_name_needs_no_quotes(name):
    assert slug(name).replace("-", "").replace("_", "").replace(".", "").isalnum()
    assert not slug(name).startswith((".", "-"))
