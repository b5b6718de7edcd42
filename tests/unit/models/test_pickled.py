"""Weights that torch.save has written, and pickles that hold code; none of them is loaded."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dsrun.errors import UsageError
from dsrun.models.pickled import refuse_code

STATE = OrderedDict(
    half=torch.ones(2, dtype=torch.bfloat16),
    parameter=torch.nn.Parameter(torch.ones(1)),
    sparse=torch.eye(2).to_sparse(),
    packed=torch.ones(2, dtype=torch.int8),
    size=torch.Size([1, 2]),
    array=np.ones(3),
    kind=torch.float16,
)


# A text of 2^62 bytes.
HUGE = b"\x80\x04\x8d" + (1 << 62).to_bytes(8, "little") + b"abc"


class Code:
    def __init__(self, *does: Any) -> None:
        self._does = does

    def __reduce__(self) -> Any:
        return self._does


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("in_zip", [True, False])
def test_weights_are_taken(tmp_path: Path, in_zip: bool, protocol: int) -> None:
    torch.save(STATE, tmp_path / "w.bin", _use_new_zipfile_serialization=in_zip, pickle_protocol=protocol)
    refuse_code(tmp_path / "w.bin")


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("in_zip", [True, False])
@pytest.mark.parametrize(
    "code",
    [Code(os.system, ("true",)), Code(eval, ("1",)), Code(getattr, (1, "real"))],
    ids=["system", "eval", "getattr"],
)
def test_code_beside_weights_is_refused(tmp_path: Path, code: Code, in_zip: bool, protocol: int) -> None:
    file = tmp_path / "w.bin"
    torch.save({**STATE, "x": code}, file, _use_new_zipfile_serialization=in_zip, pickle_protocol=protocol)
    with pytest.raises(UsageError, match=r"would run .*(system|eval|getattr) when it is loaded"):
        refuse_code(file)


@pytest.mark.parametrize("content", [b"", b"PK", b"<html>", b"\x80\x02]q\x00", pickle.dumps([1]), HUGE])
def test_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.bin").write_bytes(content)
    with pytest.raises(UsageError, match="is not a file of weights"):
        refuse_code(tmp_path / "w.bin")


def test_archive_without_tensors_and_named_pipe_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.bin", "w") as archive:
        archive.writestr("a", "b")
    os.mkfifo(tmp_path / "pipe.bin")
    for name in ("w.bin", "pipe.bin", "missing.bin"):
        with pytest.raises(UsageError, match="is not a file of weights"):
            refuse_code(tmp_path / name)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, 97, "encrypted"])
def test_damaged_archive_is_refused(tmp_path: Path, method: int | str) -> None:
    file = tmp_path / "w.bin"
    packed = method if method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2) else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", int(packed)) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"}0" * 5000 + b"}.")
    content = bytearray(file.read_bytes())
    central = content.find(b"PK\x01\x02")
    if packed:  # what is packed begins behind the name
        content[48:54] = b"\xff" * 6
    elif method == "encrypted":
        content[6] |= 1
        content[central + 8] |= 1
    else:
        content[8] = content[central + 10] = 97
    file.write_bytes(content)
    with pytest.raises(UsageError, match="is not a file of weights"):
        refuse_code(file)


def test_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 3\n")
    with pytest.raises(UsageError, match="Git LFS") as caught:
        refuse_code(tmp_path / "w.bin")
    assert caught.value.fix == "git lfs pull"
