"""`dsrun data` as a user calls it: its words, and what it writes about rows of a conversation."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forkserver.client import HEAVY

DOC = Path(__file__).parents[2] / "docs" / "data.md"
MODEL = ("--model", "demo-llama", "--chat-template", "chatml")
TALK = [{"role": "user", "content": "one <b>"}, {"role": "assistant", "content": "two [bold]three :smile: four"}]


@pytest.fixture
def chats(here):
    rows = [{"messages": TALK}, {"messages": [{"role": "user"}]}, {"messages": TALK}]
    (here / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "chats.jsonl"


@pytest.fixture
def started(dsrun, here):
    """What the process that shows rows would be started with: its options, and the flags of training."""

    def call(*args):
        done = dsrun("data", *args, "--dry-run")
        assert done.returncode == 0, done.stderr
        _, _, module, rows, options, *flags = shlex.split(done.stdout)
        assert (module, rows) == ("dsrun.train.prepare", "--rows")
        return json.loads(options), flags

    return call


@pytest.mark.parametrize(
    "words",
    [
        ["chats.jsonl", "more.jsonl", *MODEL],
        [*MODEL, "chats.jsonl", "more.jsonl"],
        ["chats.jsonl", "--model=demo-llama", "more.jsonl"],
        ["--row", "3", "chats.jsonl", *MODEL, "more.jsonl"],
        [*MODEL, "--train-file", "chats.jsonl", "more.jsonl"],
        [*MODEL, "--train_file=chats.jsonl", "--row", "3", "more.jsonl"],
    ],
)
def test_files_stand_before_or_behind_the_flags(started, chats, here, words):
    (here / "more.jsonl").write_text((here / chats).read_text())
    _, flags = started(*words)
    files = [word for word in " ".join(flags).replace("=", " ").split() if word.endswith(".jsonl")]
    assert files == ["chats.jsonl", "more.jsonl"]
    assert all(each in ("chats.jsonl", "more.jsonl") or "=" in each for each in flags if ".jsonl" in each)


def test_options_are_taken_from_among_the_flags(started, chats):
    options, flags = started(
        chats, "--row", "3", "--max-length", "9", "--row=5..7", *MODEL, "--tokens", "--html", "p.html"
    )
    assert options == {"rows": [[3, 3], [5, 7]], "split": "train", "html": "p.html", "tokens": True, "form": "text"}
    assert flags == ["--max-length", "9", *MODEL, "--train-file", chats]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_files_are_of_the_split_that_is_asked_for(started, chats, split):
    options, flags = started(chats, *MODEL, "--split", split, "--train-file", chats)
    assert (options["split"], flags[-2:]) == (split, [f"--{split}-file", chats])


@pytest.mark.parametrize("number", ["0", "-1", "x", "7..3", "1..", "2,3"])
def test_what_is_no_row_number_is_refused(dsrun, chats, number):
    done = dsrun("data", chats, *MODEL, f"--row={number}")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert f"--row {number}" in done.stderr


def test_page_is_replaced_with_force_only(dsrun, here, chats):
    (here / "p.html").write_text("mine")
    done = dsrun("data", chats, *MODEL, "--html", "p.html")
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert dsrun("data", chats, *MODEL, "--html", "p.html", "--force", "--dry-run").returncode == 0
    assert (here / "p.html").read_text() == "mine"


@pytest.mark.parametrize("place", ["no/p.html", ".", "chats.jsonl/p.html"])
def test_page_that_cannot_be_written_is_refused_at_once(dsrun, chats, place):
    done = dsrun("data", chats, *MODEL, "--html", place, "--force", "--dry-run")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert place in done.stderr


def module(*rows, **options):
    """The words behind -m that `dsrun data` starts."""
    known = {"rows": rows, "split": "train", "html": None, "tokens": False, "form": "text"}
    return "dsrun.train.prepare", "--rows", json.dumps(known | options), *MODEL, "--train-file", "chats.jsonl"


def show(here, environ, *args, code=0):
    done = HEAVY.run([sys.executable, "-m", *args], cwd=here, env=environ, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.train
def test_rows_as_text_page_and_json(here, environ, chats, tmp_path):
    """One product on stdout, all talk on stderr; no text of a row is taken for HTML or for colours."""
    environ["DSRUN_CACHE"] = str(tmp_path / "cache")
    text = show(here, environ, "dsrun", "data", chats, *MODEL, "--row", "2..3", "--max-length", "60")
    assert text.stderr.startswith("reading ")
    assert "loading transformers" not in text.stdout
    second, third = text.stdout.strip().split("\n\n")[1:]
    assert second.startswith("chats.jsonl, line 2\nleft out, as a row with an invalid value: ")
    assert "user↵\none <b>" in third
    assert "⟦two [bold]three :smile: four<|im_end|>⟧" in third
    page = show(here, environ, *module([3, 3], html="p.html"))
    assert page.stdout == "p.html\n"
    html = (here / "p.html").read_text()
    assert not re.findall(r"<(?:script|link|img|b>)|https?://", html)
    learned = re.findall(r'<span class="learned" title="(\d+): \d+">(.*?)</span>', html)
    answer = json.loads(show(here, environ, *module([3, 3], form="json")).stdout)
    ((sample,),) = ([row["samples"][0] for row in each["rows"]] for each in answer["sets"])
    tokens = [each for each in sample["tokens"] if each["state"] == "learned"]
    assert [int(position) for position, _ in learned] == [each["position"] for each in tokens]
    assert "".join(each["text"] for each in tokens) == f"{TALK[1]['content']}<|im_end|>"
    assert answer["version"] == 1
    assert keys_of(answer) <= documented()
    unknown = show(here, environ, *module([17, 17]), code=2)
    assert "3 rows" in unknown.stderr.splitlines()[-1]


def keys_of(value):
    if isinstance(value, list):
        return set().union(*map(keys_of, value)) if value else set()
    return set().union(value, *map(keys_of, value.values())) if isinstance(value, dict) else set()


def documented():
    """The words in code quotes of the section on the format."""
    section = DOC.read_text().partition("### Rows for programs\n")[2].partition("\n## ")[0]
    return {*re.findall(r"`([a-z_]+)`", section), "learned", "read", "cut", "lost"}


@pytest.mark.train
@pytest.mark.usefixtures("chats")
def test_closed_pipe_ends_without_a_word(here, environ, tmp_path):
    environ["DSRUN_CACHE"] = str(tmp_path / "cache")
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, "-m", *module([1, 3], tokens=True)]
    done = HEAVY.run(argv, cwd=here, env=environ, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
