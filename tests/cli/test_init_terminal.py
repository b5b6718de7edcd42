"""`dsrun init` on a terminal: what it asks, wrong answers, and the end of the input."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.slurm_recordings import stand_in, stand_in_cluster

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip
PROMPT = re.compile(r"^([a-z][a-z ]*)(?: \[([^\n]*)\])?: $", re.MULTILINE)
END = "\x04"
INTERRUPT = "Ctrl-C"


class Session(NamedTuple):
    """What appeared, the prompts in their order, what went to stdout, and the exit code."""

    text: str
    asked: list[str]
    stdout: str
    code: int


Interview = Callable[..., Session]


@pytest.fixture(autouse=True)
def bare(nowhere: Path, environ: dict[str, str], tmp_path: Path) -> None:
    """A machine without SLURM and without models of the Hub, whatever this one has."""
    environ["HF_HOME"] = str(tmp_path / "no-cache")


@pytest.fixture
def interview(here: Path, environ: dict[str, str]) -> Interview:
    """Call `dsrun init ARGS` with stdin and stderr on a terminal, and give one answer to each prompt."""
    environ |= {"NO_COLOR": "1", "TERM": "xterm"}

    def call(answers: list[str], *args: str) -> Session:
        keyboard, terminal = pty.openpty()
        child = subprocess.Popen(
            [sys.executable, "-m", "dsrun", "init", *args],
            cwd=here, env=environ, stdin=terminal, stdout=subprocess.PIPE, stderr=terminal, text=True,
        )  # fmt: skip
        os.close(terminal)
        waiting, seen, new, asked = list(answers), "", "", []
        decode = codecs.getincrementaldecoder("utf-8")().decode
        with suppress(OSError):  # Linux ends a terminal that nobody holds any more with EIO
            while chunk := os.read(keyboard, 4096):
                new += decode(chunk).replace("\r", "")
                if prompt := PROMPT.search(new):
                    asked.append(prompt[1])
                    seen, new = seen + new, ""
                    answer = waiting.pop(0)
                    if answer == INTERRUPT:
                        child.send_signal(signal.SIGINT)
                    else:
                        os.write(keyboard, (answer if answer == END else f"{answer}\n").encode())
        assert child.stdout is not None
        stdout = child.stdout.read()
        code = child.wait()
        os.close(keyboard)
        assert waiting == []
        return Session(seen + new, asked, stdout, code)

    return call


@pytest.fixture
def model(here: Path) -> Path:
    folder = here / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def written(here: Path) -> Callable[[], dict]:
    return lambda: yaml.safe_load((here / "run.yaml").read_text())


def test_terminal_empty_folder_takes_two_answers(interview, written, dsrun):
    found = interview(["", ""])
    assert (found.code, found.asked) == (0, ["model", "output"])
    assert written()["train"] == {"model": "demo-t5", "output": "runs/demo-t5"}
    assert found.stdout.splitlines()[0].startswith("dsrun train --config run.yaml --dry-run")
    assert dsrun("train", "--config", "run.yaml", "--dry-run").returncode == 0


def test_terminal_questions_of_a_real_model(interview, written, here, model, dsrun):
    (here / "notes.jsonl").write_text('{"text": "one"}\n')
    found = interview(["", "", "16", "6", "here"])
    assert found.asked == ["model", "train file", "lora", "global batch size", "output"]
    assert "  1)  ./tiny      llama, a folder here\n" in found.text
    assert "  1)  notes.jsonl  16 B, text\n" in found.text
    content = written()["train"]
    assert (content["lora"], content["global_batch_size"], content["output"]) == (16, 6, "here")
    assert "  # why: your answer\n  global_batch_size: 6\n" in (here / "run.yaml").read_text()
    assert dsrun("train", "--config", "run.yaml", "--dry-run").returncode == 0


def test_terminal_wrong_answers_are_asked_again(interview, written, here, model):
    (here / "notes.jsonl").write_text('{"text": "one"}\n')
    (here / "empty.csv").write_text("")
    answers = ["./tin", "1", "note.jsonl", "empty.csv", "1", "many", "full", "-1", "8", "notes.jsonl", ""]
    found = interview(answers)
    assert found.code == 0
    errors = re.findall(r"^error: (.*)$", found.text, re.MULTILINE)
    assert errors == [
        "--model ./tin does not exist (did you mean tiny?)",
        "--train-file note.jsonl does not exist (did you mean notes.jsonl?)",
        "empty.csv is empty",
        "--lora many is not a rank (16, or 0 to train all weights)",
        "--global-batch-size -1 is not a number of samples (64, for example)",
        "output notes.jsonl is a file (give a folder as --output)",
    ]
    assert written()["train"]["global_batch_size"] == 8


def test_terminal_options_are_not_asked(interview, model, here):
    (here / "notes.jsonl").write_text('{"text": "one"}\n')
    found = interview(
        ["full"], "--model", "tiny", "--train-file", "notes.jsonl", "--global-batch-size", "4", "--output=x"
    )
    assert (found.code, found.asked) == (0, ["lora"])


def test_terminal_data_without_default_needs_an_answer(interview, model, written):
    found = interview(["", "", "demo", "", "", ""])
    assert found.asked[1:3] == ["train file", "train file"]
    assert "error: an answer is needed (a data file; or --dataset NAME for one of the Hub)" in found.text
    assert "train_file" not in written()["train"]


def test_terminal_columns_are_asked_where_names_do_not_tell(interview, written, here, model, dsrun):
    (here / "faq.csv").write_text("frage,antwort,nummer\nWie?,So.,1\n")
    found = interview(
        [
            "",
            "1",
            "fragen",
            "frage",
            "2",
            "",
            "",
            "",
        ][:8]
    )
    assert found.asked[2:5] == ["text column", "text column", "summary column"]
    assert "error: --text-column fragen is not a column of the data (did you mean frage?)" in found.text
    content = written()["train"]
    assert (content["text_column"], content["summary_column"]) == ("frage", "nummer")
    assert dsrun("train", "--config", "run.yaml", "--dry-run").returncode == 0


def test_terminal_task_is_asked_for_a_model_that_is_not_here(interview, written, here):
    (here / "train.jsonl").write_text('{"source": "a", "target": "b"}\n')
    found = interview(["google/flan-t5-xxl", "", "causal", "", "", "", ""])
    assert found.asked == ["model", "train file", "task", "task", "lora", "global batch size", "output"]
    assert "error: --task causal is not a task (did you mean causal-lm?)" in found.text
    assert "task [seq2seq]: " in found.text
    assert written()["train"]["task"] == "seq2seq"


@pytest.mark.parametrize("key", [END, INTERRUPT], ids=["end of input", "Ctrl-C"])
@pytest.mark.parametrize("before", [[], ["1"]], ids=["at once", "later"])
def test_terminal_end_writes_nothing(interview, here, key, before):
    found = interview([*before, key])
    assert found.code == 130
    assert found.text.endswith("error: interrupted\n")
    assert (found.stdout, list(here.iterdir())) == ("", [])


def test_terminal_questions_stay_out_of_stdout(interview):
    found = interview(["2", "x"], "-o", "-")
    assert yaml.safe_load(found.stdout)["train"] == {"model": "demo-llama", "output": "x"}


def test_terminal_yes_asks_nothing(interview, written):
    found = interview([], "--yes")
    assert (found.code, found.asked) == (0, [])
    assert written()["train"]["model"] == "demo-t5"


def test_terminal_for_stdin_alone_is_not_asked_on(here, environ):
    """Nobody would see the questions."""
    keyboard, terminal = pty.openpty()
    command = [sys.executable, "-m", "dsrun", "init"]
    done = subprocess.run(command, cwd=here, env=environ, stdin=terminal, capture_output=True, text=True, check=False)
    os.close(terminal)
    os.close(keyboard)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --model is needed")


def test_terminal_characters_that_are_no_text(interview, written):
    found = interview(["\x1b[A", "", ""])
    assert "error: --model contains characters that cannot be shown" in found.text
    assert found.code == 0


def test_terminal_slurm_session(interview, written, programs, dsrun):
    stand_in_cluster(programs)
    stand_in(programs, "sbatch", ("", ""))
    found = interview(["1", "cluster", "slurm", "nope", "debug", "8", "4", "9", "1", "1:00:00", "0:20:00", ""])
    assert found.asked == [
        "model", "slurm", "slurm", "partition", "partition", "gpus per node", "gpus per node", "nodes", "nodes",
        "time", "time", "output",
    ]  # fmt: skip
    assert "  1)  main   5 nodes, 8 of 14 GPUs free, no time limit\n" in found.text
    assert len(re.findall("^error: ", found.text, re.MULTILINE)) == 5
    assert written()["slurm"] == {"partition": "debug", "gpus_per_node": 4, "nodes": 1, "time": "0:20:00"}
    assert dsrun("render-slurm", "--config", "run.yaml").returncode == 0


def test_terminal_number_of_no_choice_is_asked_again(interview, written, here):
    """It is not taken for a name on the Hub; the rank of adapters may be any number."""
    found = interview(["7", "demo-t5", ""])
    assert (found.code, found.asked) == (0, ["model", "model", "output"])
    assert "there is no choice 7" in found.text
    assert written()["train"]["model"] == "demo-t5"


def test_terminal_conversations_for_a_seq2seq_model_are_refused(interview, written, here):
    """The question comes again, with what to do."""
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (here / "chats.jsonl").write_text(json.dumps(chat) + "\n")
    found = interview(["demo-t5", "chats.jsonl", "demo", ""])
    assert (found.code, found.asked) == (0, ["model", "train file", "train file", "output"])
    assert "--model demo-llama" in found.text
    assert "train_file" not in written()["train"]
