"""Ledgers and JSON files: what is written can be read, whatever crashed in between."""

import json
import math
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.runs.checksum import ManifestFile
from dsrun.runs.manifest import CheckpointManifest
from dsrun.runs.records import (
    EventLog,
    LineAppender,
    iter_records,
    plain,
    read_records,
    revive,
    utc_now,
    write_json_atomic,
)

numbers = st.floats() | st.integers() | st.text() | st.booleans() | st.none()
keys = st.text(min_size=1).filter(lambda key: key != "nonfinite")


def same(left: object, right: object) -> bool:
    both_nan = isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right)
    return both_nan or (left == right and type(left) is type(right))


def test_jsonl_records_round_trip_with_time_stamps(tmp_path):
    """Records come back with time stamps."""
    path = tmp_path / "metrics.jsonl"
    with LineAppender(path) as metrics:
        metrics.append({"step": 1, "loss": 2.5, "name": "schön\nzwei"})
        metrics.append({"step": 2, "extra": {"unknown": [1, 2]}})
    first, second = read_records(path)
    assert (first["step"], first["loss"], first["name"]) == (1, 2.5, "schön\nzwei")
    assert second["extra"] == {"unknown": [1, 2]}
    assert datetime.fromisoformat(first["time"]) <= datetime.fromisoformat(second["time"])
    assert 0 <= first["elapsed"] <= second["elapsed"]
    assert path.read_text().count("\n") == 2


def test_time_stamp_is_utc_in_milliseconds():
    """Time is UTC in milliseconds."""
    text = utc_now()
    assert text.endswith("Z")
    assert len(text) == len("2026-11-21T04:48:00.123Z")


@given(st.dictionaries(keys, numbers))
def test_json_record_round_trip_with_nonfinite_numbers(record):
    """Every record is valid JSON, and reads back as it was."""
    written = json.loads(json.dumps(plain(record), allow_nan=False))
    back = revive(written)
    assert back.keys() == record.keys()
    assert all(same(back[key], record[key]) for key in record)


def test_nonfinite_numbers_named_in_json_record():
    """Numbers that are not finite become null and are named."""
    record = plain({"loss": math.nan, "eval": {"ppl": math.inf}, "list": [1.0, -math.inf]})
    assert record == {
        "loss": None,
        "eval": {"ppl": None},
        "list": [1.0, None],
        "nonfinite": {"loss": "nan", "eval.ppl": "inf", "list.1": "-inf"},
    }


def test_json_record_values_of_other_types():
    class Scalar:
        def tolist(self):
            return 1.5

    assert plain({"path": Path("/a/b"), "scalar": Scalar(), "set": {1}}) == {
        "path": "/a/b",
        "scalar": 1.5,
        "set": [1],
    }


def test_undecodable_file_name_in_json_record(tmp_path):
    """An undecodable file name can be written."""
    path = tmp_path / "events.jsonl"
    with LineAppender(path) as events:
        events.append({"path": Path(os.fsdecode(b"caf\xe9"))})
    assert read_records(path)[0]["path"] == "caf\udce9"


@pytest.mark.parametrize("torn", ['{"step": 3, "lo', '{"step": 3}\n{"st', "\x00\x00", "[1, 2]\n", "\n\n"])
def test_jsonl_torn_line_costs_only_itself(tmp_path, torn):
    """A torn line costs only itself."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + torn)
    before = [record["step"] for record in iter_records(path)]
    assert before in ([1], [1, 3])
    with LineAppender(path) as metrics:
        metrics.append({"step": 4})
    assert [record["step"] for record in read_records(path)] == [*before, 4]


def test_jsonl_missing_file_has_no_records(tmp_path):
    """A missing file has no records."""
    assert read_records(tmp_path / "metrics.jsonl") == []


def test_jsonl_concurrent_writers_do_not_mix_lines(tmp_path):
    """Two writers do not mix their lines."""
    path = tmp_path / "events.jsonl"
    code = """
import sys; from pathlib import Path; from dsrun.runs.records import LineAppender
with LineAppender(Path(sys.argv[1])) as out:
    for n in range(200): out.append({"who": sys.argv[2], "n": n, "pad": "x" * 500})
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), who]) for who in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    records = read_records(path)
    assert len(records) == 400
    for who in "ab":
        assert [record["n"] for record in records if record["who"] == who] == list(range(200))


def test_jsonl_line_after_full_disk_is_whole(tmp_path):
    """After a full disk the next line is whole."""
    path = tmp_path / "metrics.jsonl"
    code = """
import resource, signal, sys; from pathlib import Path; from dsrun.runs.records import LineAppender
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
out = LineAppender(Path(sys.argv[1]))
out.append({"step": 1})
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
try:
    out.append({"step": 2, "pad": "x" * 200})
except OSError as error:
    print(error.errno)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
out.append({"step": 3})
"""
    answer = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert answer.stdout
    assert [record["step"] for record in read_records(path)] == [1, 3]


def test_event_log_names_writing_process(tmp_path):
    """Events name the process and the host that wrote them."""
    with EventLog(tmp_path / "events.jsonl") as events:
        written = events.write("checkpoint_end", step=5, seconds=1.5, path=tmp_path)
    assert read_records(tmp_path / "events.jsonl") == [written]
    assert (written["kind"], written["step"], written["pid"]) == ("checkpoint_end", 5, os.getpid())
    assert {"time", "elapsed", "host"} <= written.keys()


def test_jsonl_appender_may_be_closed_twice(tmp_path):
    """Closing twice is fine."""
    out = LineAppender(tmp_path / "a.jsonl")
    out.close()
    out.close()


def test_write_json_atomic_replaces_file_and_leaves_no_other(tmp_path):
    """An atomic write replaces the file and leaves nothing else behind."""
    path = tmp_path / "run.json"
    write_json_atomic(path, {"version": 1, "loss": math.nan})
    assert json.loads(path.read_text()) == {"version": 1, "loss": None, "nonfinite": {"loss": "nan"}}
    write_json_atomic(path, {"version": 2})
    assert json.loads(path.read_text()) == {"version": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_failed_write_json_atomic_keeps_old_file(tmp_path):
    """A failed write keeps the old file."""
    path = tmp_path / "run.json"
    write_json_atomic(path, {"version": 1})
    loop: dict = {}
    loop["self"] = loop
    with pytest.raises(RecursionError):
        write_json_atomic(path, loop)
    assert json.loads(path.read_text()) == {"version": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


# Of metrics.jsonl, events.jsonl and run.json.
KEYS = """
    time elapsed nonfinite step epoch loss lr grad_norm tokens tokens_per_s mfu padding gpu_memory gpu_memory_peak
    host_memory host_memory_peak kind pid host boot uptime max_steps path seconds starting_s queued_s metrics signal
    signalled_host signalled_at cause message exit_code world_size attempt requeue rank node failed_host steps written_s
    bytes halvings recompute offload gpu slowdown chronic version command git_commit versions specs sources packing
    speed gpus
"""


def test_run_folder_docs_page_names_every_key():
    """docs/run-folder.md names every key."""
    page = (Path(__file__).parents[3] / "docs" / "run-folder.md").read_text()
    keys = {key for record in (CheckpointManifest, ManifestFile) for key in get_type_hints(record)} | {*KEYS.split()}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
