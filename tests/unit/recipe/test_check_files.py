"""Checks of files before the start: cheap, and one line for each error."""

import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.preflight.files import check_files, check_owners
from dsrun.recipe.recipe_spec import TrainSpec


@pytest.mark.parametrize("flag", ["train_file", "validation_file", "test_file", "dataset"])
def test_check_files_reads_every_named_file(flag, tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "x"}')
    spec = TrainSpec(**{flag: str(file) if flag == "dataset" else [str(file)]})
    check_files(spec)
    file.write_text("PAR1")
    with pytest.raises(UsageError, match=r"data\.jsonl is a Parquet file"):
        check_files(spec)


def test_missing_file_error_names_flag_and_near_file(tmp_path):
    """The error for a missing file names its flag, and the file that may be meant."""
    (tmp_path / "train.jsonl").write_text("{}")
    with pytest.raises(UsageError, match=r"--test-file .*tran.jsonl does not exist.*did you mean .*train.jsonl"):
        check_files(TrainSpec(test_file=[str(tmp_path / "tran.jsonl")]))


def test_generation_config_must_exist(tmp_path):
    spec = TrainSpec(model="org/model")
    check_files(spec, generation_config=str(tmp_path))
    check_files(spec, generation_config="org/model")
    for name in (f"{tmp_path}/beams.json", "beams.json"):
        with pytest.raises(UsageError, match=r"--generation-config .*beams\.json does not exist"):
            check_files(spec, generation_config=name)


def test_files_of_a_folder_are_looked_at(tmp_path):
    (tmp_path / "a.jsonl").write_text("PAR1")
    with pytest.raises(UsageError, match=r"a\.jsonl is a Parquet file"):
        check_files(TrainSpec(train_file=[str(tmp_path)]))


def test_prompts_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_text("words")
    with pytest.raises(UsageError, match=r"a\.jsonl, line 1: not JSON"):
        check_files(TrainSpec(sample_prompts=str(tmp_path / "a.jsonl")))


def test_folder_of_prompts_rejected(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        check_files(TrainSpec(sample_prompts=str(tmp_path)))


def test_missing_dataset_folder_rejected(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        check_files(TrainSpec(dataset=str(tmp_path / "nowhere")))


def test_hub_names_not_checked_by_launcher():
    """Hub names are left to the worker."""
    check_files(TrainSpec(dataset="org/data", model="org/model"))


def test_model_folder_checks(tmp_path):
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


def test_check_files_imports_no_heavy_package():
    code = (
        "import sys, dsrun.recipe.preflight.files; "
        "print([m for m in ('torch','transformers','datasets','numpy','pyarrow','pydantic') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("flag", ["model", "train_file", "dataset", "tokenizer"])
def test_path_too_long_for_file_system_rejected(flag, tmp_path):
    """A path too long for a file system gives one line and no traceback."""
    path = f"{tmp_path}/{'a' * 300}.json"
    spec = {"model": "demo-t5"} | {flag: [path] if flag == "train_file" else path}
    with pytest.raises(UsageError, match="does not exist"):
        check_files(TrainSpec(**spec))


def test_hub_name_too_long_for_file_system_accepted():
    """A Hub name too long for a file system is left to the Hub."""
    check_files(TrainSpec(model="a" * 300, dataset="b" * 300))


def test_nvme_offload_path_must_be_writable(tmp_path):
    """An NVMe path that cannot be written is refused, and the check leaves nothing behind."""
    (tmp_path / "file").write_text("x")
    # Nobody may write to /proc/1, root included.
    for path in (tmp_path / "file" / "swap", Path("/proc/1/swap")):
        with pytest.raises(UsageError, match="--nvme-path"):
            check_files(TrainSpec(model="demo-t5", zero="3", offload="nvme", nvme_path=str(path)))
    check_files(TrainSpec(model="demo-t5", zero="3", offload="nvme", nvme_path=str(tmp_path / "new" / "swap")))
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_names_on_modelscope_have_an_owner(tmp_path):
    """Told before the start; folders and demos are no names."""
    for given in ({"model": "org/m"}, {"model": str(tmp_path)}, {"model": "demo-t5"}):
        check_owners(TrainSpec(hub="modelscope", **given))
    for given, flag in (
        ({"model": "t5-large"}, "--model"),
        ({"tokenizer": "t5"}, "--tokenizer"),
        ({"dataset": "x/y/z"}, "--dataset"),
    ):
        with pytest.raises(UsageError, match=f"{flag} .*: a name on ModelScope is OWNER/NAME"):
            check_files(TrainSpec(hub="modelscope", **given))


def test_chat_template_must_be_a_text_file(tmp_path):
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    (tmp_path / "odd.jinja").write_bytes(b"\xff\xfe")
    check_files(TrainSpec(chat_template="chatml"))
    check_files(TrainSpec(chat_template=str(tmp_path / "own.jinja")))
    for name, why in (("nope.jinja", "No such file"), ("", "directory"), ("odd.jinja", "UTF-8"), ("o" * 300, "long")):
        with pytest.raises(UsageError, match=rf"^--chat-template .*{why}"):
            check_files(TrainSpec(chat_template=str(tmp_path / name)))
