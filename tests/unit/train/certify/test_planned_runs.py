"""Which runs certify trains, and what becomes of those after one that failed."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from dsrun.certify.checks import CHECK_FACTS
from dsrun.certify.request import CertifyRequest
from dsrun.recipe.resolve import resolve
from dsrun.train.certify import runs
from dsrun.train.certify.subject import CertifySubject, SmallRun


def subject(tmp_path, task="causal-lm", experts=(), **asked):
    rows = {split: tmp_path / f"{split}.jsonl" for split in ("train", "test")}
    return CertifySubject(
        request=CertifyRequest(model="m", **asked), found=None, config=None, task=task, small=tmp_path / "a b",
        words=tmp_path / "words", tokenizer=False, rows=rows, experts=experts,
    )  # fmt: skip


ASKED = [
    {}, {"quick": True}, {"stages": (3,)}, {"stages": (1, 2)}, {"lora": False}, {"gpus": 1}, {"gpus": 2},
    {"task": "dpo"}, {"task": "seq2seq"}, {"experts": ("experts.gate_up_proj", "experts.down_proj")},
]  # fmt: skip


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_flags_of_each_run_are_those_of_train(asked, tmp_path):
    found = runs.planned(subject(tmp_path, **asked), tmp_path)
    names = [run.name for run in found]
    for run in found:
        recipe = resolve(run.flags, tmp_path)
        assert recipe.spec.output == str(tmp_path / run.name)
        assert run.after in ("", *names[: names.index(run.name)])
        assert bool(recipe.hf.get("use_cpu")) is ("gpus" not in asked)
        assert "{" not in run.says


def test_runs_are_those_that_were_asked_for(tmp_path):
    names = {run.name for run in runs.planned(subject(tmp_path), tmp_path)}
    assert "zero1" not in names
    assert {"reference", "zero2", "zero3", "lora", "merged", "resumed"} <= names
    stages = {run.name for run in runs.planned(subject(tmp_path, stages=(2,), lora=False), tmp_path)}
    assert stages == {"reference", "accumulated", "kernels", "plain", "resumed", "two-ranks"}
    alone = runs.planned(subject(tmp_path, gpus=1), tmp_path)
    assert {run.ranks for run in alone} == {1}


def test_texts_are_generated_where_they_are_compared(tmp_path):
    """Under ZeRO-3 a text takes longer than a training."""
    found = runs.planned(subject(tmp_path, task="seq2seq"), tmp_path)
    evaluated = {run.name: resolve(run.flags, tmp_path).hf for run in found if "--do-eval" in run.flags}
    assert {name for name, hf in evaluated.items() if hf["predict_with_generate"]} == {"generating", "reloaded"}


def test_every_run_is_compared_by_a_check():
    compared = {name for facts in CHECK_FACTS.values() for name in facts.get("runs", ())}
    assert compared == set(runs.RUNS)


@pytest.mark.parametrize("code", CHECK_FACTS)
def test_check_made_alone_trains_what_its_runs_go_on_with(code, tmp_path):
    found = runs.planned(subject(tmp_path, only=(code,)), tmp_path)
    assert {run.after for run in found} <= {"", *(run.name for run in found)}


def test_runs_after_a_failed_one_have_its_error_and_others_go_on(tmp_path, monkeypatch):
    groups = []

    class Group:
        def __init__(self, ready, ranks, scratch, request):
            self.ready = ready
            groups.append([run.name for run in ready])

        def outcomes(self):
            for run in self.ready:
                error = "broken" if run.name == "zero3" else ""
                yield SmallRun(run.name, run.says, tmp_path / run.name, error)
                if error:
                    return

    monkeypatch.setattr(runs, "_RankGroup", Group)
    monkeypatch.setattr(runs, "_begin", lambda *_: None)
    of = subject(tmp_path)
    found = runs.train_all(runs.planned(of, tmp_path), tmp_path, of.request, notify=lambda _: None)
    assert {name for name, run in found.items() if run.error} == {"zero3", "generating", "resharded", "reloaded"}
    assert set(found) == {run.name for run in runs.planned(of, tmp_path)}
    assert groups == [
        ["reference", "accumulated", "kernels", "plain"], ["resumed"], ["two-ranks", "zero2", "zero3", "lora"],
        ["lora"], ["readapted"], ["merged"],
    ]  # fmt: skip


class Clock:
    """In place of the module `time`."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(("rate", "times"), [(0.0, 1), (0.2, runs._BUSY)], ids=["waits", "computes"])
def test_run_without_an_end_has_longer_where_it_computes(rate, times, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(runs, "prefork", lambda *_: [])
    monkeypatch.setattr(runs, "time", clock)
    monkeypatch.setattr(runs, "_cpu_seconds", lambda _: clock.now * rate)
    (run, *_) = runs.planned(subject(tmp_path), tmp_path)
    group = runs._RankGroup([run], 1, tmp_path, CertifyRequest(model="m", limit_s=60))
    (ended,) = group.outcomes()
    found = re.fullmatch(r"it did not end within (\d+) s", ended.error)
    assert int(found[1]) == pytest.approx(60 * times, abs=1)


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ([(0, "")], ""),
        ([(1, "the cause"), (0, "connection lost")], "the cause"),
        ([(0, ""), (1, "after rank 0 has ended")], "after rank 0 has ended"),
    ],
)
def test_error_of_a_run_is_that_of_the_rank_that_failed_first(told, error, tmp_path, monkeypatch):
    ranks = SimpleNamespace(pid=2**22 + 1, poll=lambda: None, wait=lambda: None)
    environs = []

    def exec_rank(argv, env, _):
        environs.append(env)
        lines = [json.dumps({"run": run.name, "rank": rank, "error": each}) for rank, each in told]
        (tmp_path / f"{run.name}.2.json.done").write_text("".join(f"{line}\n" for line in lines))
        return ranks

    monkeypatch.setattr(runs, "prefork", lambda *_: [SimpleNamespace(exec_rank=exec_rank)] * 2)
    run = next(each for each in runs.planned(subject(tmp_path), tmp_path) if each.ranks == 2)
    (ended,) = runs._RankGroup([run], 2, tmp_path, CertifyRequest(model="m")).outcomes()
    assert ended.error == error
    # The user's own cache may be read-only.
    assert {env["DSRUN_CACHE"] for env in environs} == {str(tmp_path / "cache")}
