"""The launcher's look at files: cheap, and one clear line for each thing wrong."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.files import check_files, json_error
from dsrun.recipe.spec import TrainSpec

GOOD = {
    "a.json": b'[\n  {"text": "x"}\n]',
    "lines.json": b'{"text": "x"}\n{"text": "y"}\n',
    "b.jsonl": b'\xef\xbb\xbf{"text": "x"}\n',
    "c.csv": b"source,target\na,b\n",
    "d.tsv": b"source\ttarget\na\tb\n",
    "e.txt": "zăpadă\n".encode(),
    "f.parquet": b"PAR1....PAR1",
    "g.bin": b"\x01\x00\x02\x00",
    "h.jsonl.gz": gzip.compress(b'{"text": "x"}\n'),
}

BAD = {
    "empty.json": (b"", "is empty"),
    "space.txt": (b" \n\n", "is empty"),
    "a.json": (b"PAR1rest", "is a Parquet file, not json"),
    "first.jsonl": (b'{"text": }\n{"text": "y"}\n', "line 1: not JSON"),
    "pretty.json": (b'[\n{"text": "x"},\n{"text" "y"}\n]', "line 3: not JSON"),
    "words.json": (b"hello\n", "line 1: not JSON (it begins with neither { nor [)"),
    "b.txt": (b"line\nbin\x00ary", "line 2: binary data"),
    "latin.csv": ("source,target\nzăpadă,x\n".encode("latin2"), "line 2: not UTF-8"),
    "wide.csv": ("a,b\n1,2\n".encode("utf-16"), "is UTF-16"),
    "head.csv": (b"source,target\n", "a header and no rows"),
    "c.parquet": (b"hello world", "does not begin with PAR1"),
    "short.parquet": (b"PAR1 and then cut", "cut short"),
    "odd.bin": (b"abc", "no whole number of uint16"),
    "llmc.bin": ((20240520).to_bytes(4, "little") + bytes(1020), "header of llm.c"),
    "d.jsonl": (gzip.compress(b"{}"), "is a gzip file"),
    "e.jsonl.gz": (b'{"text": 1}', "not a sound gzip"),
    "f.xlsx": (b"PK", "says nothing about the data"),
    "none": (b"{}", "says nothing about the data"),
    "g.bin.gz": (gzip.compress(b"ab"), "not read compressed"),
}


@pytest.mark.parametrize("name", GOOD)
def test_sound_files_pass(tmp_path, name):
    (tmp_path / name).write_bytes(GOOD[name])
    check_files(TrainSpec(train_file=str(tmp_path / name)))


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_in_one_line(tmp_path, name):
    content, expected = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as error:
        check_files(TrainSpec(validation_file=str(tmp_path / name)))
    assert expected in str(error.value)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_names_its_flag_and_the_one_meant(tmp_path):
    (tmp_path / "train.jsonl").write_text("{}")
    with pytest.raises(
        UsageError, match=r"--test-file .*tran.jsonl does not exist.*did you mean .*train.jsonl"
    ):
        check_files(TrainSpec(test_file=str(tmp_path / "tran.jsonl")))


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        check_files(TrainSpec(train_file=str(tmp_path)))


def test_a_dataset_folder_must_exist_and_hold_something(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        check_files(TrainSpec(dataset=str(tmp_path / "nowhere")))
    with pytest.raises(UsageError, match="empty folder"):
        check_files(TrainSpec(dataset=str(tmp_path)))


def test_hub_names_are_left_to_the_worker():
    check_files(TrainSpec(dataset="org/data", model="org/model"))


def test_models(tmp_path):
    folder = tmp_path / "model"
    with pytest.raises(UsageError, match="does not exist"):
        check_files(TrainSpec(model=str(folder)))
    folder.mkdir()
    with pytest.raises(UsageError, match=r"no config\.json"):
        check_files(TrainSpec(model=str(folder)))
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match="LoRA adapter"):
        check_files(TrainSpec(model=str(folder)))
    (folder / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="no weights"):
        check_files(TrainSpec(model=str(folder)))
    check_files(TrainSpec(model=str(folder), from_scratch=True))
    (folder / "model.safetensors").write_bytes(b"x")
    check_files(TrainSpec(model=str(folder)))


def test_an_unfinished_last_line_is_not_judged():
    assert json_error('{"a": 1}\n{"a": ', complete=False) is None
    assert json_error('{"a": ', complete=True) == (1, "Expecting value")


def test_nothing_heavy_is_imported():
    code = (
        "import sys, dsrun.recipe.files; "
        "print([m for m in ('torch','transformers','datasets','numpy','pyarrow','pydantic') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("flag", ["model", "train_file", "dataset", "tokenizer"])
def test_a_name_too_long_for_a_file_system_is_one_line_and_no_traceback(flag, tmp_path):
    spec = {"model": "demo-t5"} | {flag: f"{tmp_path}/{'a' * 300}.json"}
    with pytest.raises(UsageError, match="does not exist"):
        check_files(TrainSpec(**spec))


def test_a_hub_name_too_long_for_a_file_system_is_left_to_the_hub():
    check_files(TrainSpec(model="a" * 300, dataset="b" * 300))


def test_an_nvme_path_that_cannot_be_written_is_refused_and_nothing_is_left(tmp_path):
    (tmp_path / "file").write_text("x")
    # Nobody may write to /proc/1, root included.
    for path in (tmp_path / "file" / "swap", Path("/proc/1/swap")):
        with pytest.raises(UsageError, match="--nvme-path"):
            check_files(TrainSpec(model="demo-t5", zero="3", offload="nvme", nvme_path=str(path)))
    check_files(
        TrainSpec(model="demo-t5", zero="3", offload="nvme", nvme_path=str(tmp_path / "new" / "swap"))
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
