"""What a failed worker leaves for its launcher."""

from __future__ import annotations

import json

from dsrun.errors import UsageError
from dsrun.train.base.rank_context import ProcessProgress, cause_of, record_failure, record_interruption, trace_of
from dsrun.train.loop.nan import NanLossError


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def test_failure_report_fields(tmp_path, monkeypatch):
    """The file says what the supervisor decides by."""
    monkeypatch.setenv("DSRUN_FAILURES", str(tmp_path))
    error = raised(RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"))
    record_failure(error, rank=3, log=None, progress=ProcessProgress(step=7, micro_batch=4))
    facts = json.loads((tmp_path / "rank-3.json").read_text())
    assert facts["cause"] == "cuda_oom"
    assert (facts["step"], facts["micro_batch"], facts["rollback"]) == (7, 4, False)
    assert len(facts["trace"]) == 64


def test_failure_cause_named_by_error(tmp_path, monkeypatch):
    monkeypatch.setenv("DSRUN_FAILURES", str(tmp_path))
    record_failure(raised(NanLossError("x", rollback=True)), rank=0, log=None, progress=ProcessProgress())
    facts = json.loads((tmp_path / "rank-0.json").read_text())
    assert (facts["cause"], facts["rollback"], facts["step"]) == ("nan_loss", True, None)
    assert cause_of(UsageError("CUDA out of memory")) is None
    assert cause_of(SystemExit(143)) is None


def test_traceback_hash_ignores_message():
    """The same crash has the same hash, whatever its message."""

    def crash(words, kind=ValueError):
        try:
            raise kind(words)
        except kind as caught:
            return trace_of(caught)

    first, second = [crash(words) for words in ("at 0x1", "at 0x2")]
    assert first == second
    assert first != trace_of(raised(ValueError("elsewhere")))
    assert first != crash("at 0x1", TypeError)


def test_interruption_report_names_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("DSRUN_FAILURES", str(tmp_path))
    record_interruption(12, "checkpoint-12")
    assert json.loads((tmp_path / "interrupted.json").read_text()) == {"step": 12, "path": "checkpoint-12"}


def test_no_failure_report_without_launcher(tmp_path, monkeypatch):
    monkeypatch.delenv("DSRUN_FAILURES", raising=False)
    monkeypatch.chdir(tmp_path)
    record_interruption()
    assert not list(tmp_path.iterdir())


def test_failure_report_when_launcher_is_gone(tmp_path, monkeypatch):
    """A launcher that is gone is no second failure."""
    monkeypatch.setenv("DSRUN_FAILURES", str(tmp_path / "gone"))
    code, message = record_failure(raised(UsageError("bad")), rank=0, log=None, progress=ProcessProgress())
    assert (code, message) == (2, "bad")


def test_lost_peer_reported_as_consequence(tmp_path, monkeypatch):
    monkeypatch.setenv("DSRUN_FAILURES", str(tmp_path))
    words = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:35218"
    record_failure(raised(RuntimeError(words)), rank=1, log=None, progress=ProcessProgress(step=3))
    assert json.loads((tmp_path / "rank-1.json").read_text())["consequence"] is True
