"""training_args.bin is a pickle of anybody: it is read, and nothing that it names is run."""

import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dsrun.audit.evidence import read_arguments
from tests.unit.audit.left_behind import pickled

HEALTHY = Path(__file__).parents[2] / "data" / "audit" / "healthy"


class Evil:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def archive(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path / "training_args.bin", "w") as made:
        made.writestr("training_args/data.pkl", content)
    return path


def test_arguments_of_a_trainer() -> None:
    """Enumerations are their values, and DeepSpeed's JSON is there."""
    found = read_arguments(HEALTHY / "trainer-zero2")
    assert found["class"] == "TrainingArguments"
    assert (found["optim"], found["lr_scheduler_type"]) == ("adamw_torch_fused", "linear")
    assert found["hf_deepspeed_config"]["config"]["zero_optimization"] == {"stage": 2}
    assert found["distributed_state"]["num_processes"] == 2


def test_arguments_run_nothing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    read_arguments(archive(tmp_path, pickle.dumps(Evil(touched))))
    read_arguments(archive(tmp_path, b"cos\nsystem\n(S'touch %s'\ntR." % bytes(touched)))
    assert not touched.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80\x02}q\x00.",
        pickle.dumps([1]),
        b"cos\nsystem\n.",
        pickled({})[:50],
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
    ids=["empty", "end", "dict", "list", "system", "cut off", "length"],  # a zip's own content holds the time
)
def test_damaged_arguments_are_none(content: bytes, tmp_path: Path) -> None:
    found = read_arguments(archive(tmp_path, content))
    assert found.keys() <= {"class"}


def test_no_arguments(tmp_path: Path) -> None:
    assert read_arguments(tmp_path) == {}
    (tmp_path / "training_args.bin").write_bytes(pickle.dumps({}))
    assert read_arguments(tmp_path) == {}


def test_arguments_take_no_memory_that_a_pickle_asks_for(tmp_path: Path) -> None:
    """LONG_BINPUT of a place in the millions: pickle in C makes room for all before it."""
    folder = archive(tmp_path, b"\x80\x02Nr\xff\xff\xff\x00.")
    tracemalloc.start()
    try:
        assert read_arguments(folder) == {}
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
