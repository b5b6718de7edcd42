"""The program gets exactly its arguments, and nothing else runs: rendered scripts under the real bash."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsrun.launch.program import any_program, slug, train_program
from dsrun.slurm.render.job_script import render_script
from dsrun.slurm.render.notation import shell_quote
from dsrun.slurm.render.site import ClusterSite
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
    return render_script(spec_of(**options), program, ClusterSite(python=shell.python, own_python=shell.python))


def fresh(folder: str) -> Shell:
    return Shell(Path(folder))


@SLOW
@given(st.lists(WORD, max_size=5), WORD)
def test_python_script_gets_argv_verbatim(words, script):
    """A script gets exactly its arguments."""
    with tempfile.TemporaryDirectory() as folder:
        shell = fresh(folder)
        name = script if script and not script.startswith("-") else "my.py"
        done = shell.run(rendered(shell, any_program(["python", name, *words])))
        assert done.received == [name, *words]
        assert (done.code, shell.left()) == (0, {"runs"})


@SLOW
@given(st.lists(WORD, max_size=5), WORD.filter(bool))
def test_executable_gets_argv_verbatim(words, executable):
    """An executable gets exactly its arguments."""
    with tempfile.TemporaryDirectory() as folder:
        shell = fresh(folder)
        program = any_program(["./" + executable, *words])
        done = shell.run(rendered(shell, program))
        assert done.launched[-len(words) - 3 :][:2] == ("--no-python", "--")
        assert done.received == ["./" + executable, *words]
        assert shell.left() == {"runs"}


@SLOW
@given(st.lists(WORD, max_size=5), WORD)
def test_training_gets_flags_and_output_folder(words, output):
    """A training gets exactly its flags and its output folder."""
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
def test_env_values_and_file_names_quoted(variables, venv, setup):
    """Values of variables and names of files reach the script unchanged."""
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
def test_shell_quote_keeps_one_word_on_one_line(words):
    """A quoted word stays one word on one line."""
    line = " ".join(map(shell_quote, words))
    assert "\n" not in line
    assert "\r" not in line  # sbatch refuses a script with \r\n
    done = subprocess.run(["bash", "-c", f'printf "%s\\0" {line}'], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words


def test_non_utf8_script_name_passed_byte_for_byte(shell):
    """A file name that is not UTF-8 is passed on byte for byte."""
    name = os.fsdecode(b"caf\xe9.py")
    done = shell.run(rendered(shell, any_program(["python", name])))
    assert done.received == [name]


def test_torchrun_macro_substitution_keeps_argv():
    """The real torch substitutes macros as the stand-in does."""
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
def test_program_after_dashes_to_torchrun_argv(words, launched, name):
    """What follows the dashes becomes torchrun's arguments."""
    program = any_program(words)
    assert program.argv == launched
    assert program.name == name


def test_python_path_of_program_is_the_interpreter(shell):
    """A Python named by its path is used as the interpreter."""
    script = render_script(spec_of(), any_program([shell.python, "x.py"]), ClusterSite(python="/no/such/python"))
    assert shell.run(script).received == ["x.py"]


@pytest.mark.parametrize("name", ["a b", "../../etc", "ü", "-x", "$(touch pwned)", "a\nb", "", "." * 9])
def test_folder_name_slug_needs_no_quotes(name):
    """A folder name made from a job name needs no quotes."""
    assert slug(name).replace("-", "").replace("_", "").replace(".", "").isalnum()
    assert not slug(name).startswith((".", "-"))
