"""What a safetensors file holds, by its header, and files that are none."""

from __future__ import annotations

import json
import os
import struct

import pytest

from dsrun.checkpoints import weights
from dsrun.errors import UsageError
from dsrun.models.folder import find
from dsrun.models.headers import read_header, stored_weights


def tensor(shape, dtype="F32"):
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}}


def encoded(content, length=None):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


def test_read_header(tmp_path):
    """Also names that stand there twice, of which the last one counts."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(encoded({"__metadata__": {"format": "pt"}, "b": tensor([2, 3], "I64")["a"], **tensor([])}))
    assert read_header(file) == {"b": ("I64", (2, 3)), "a": ("F32", ())}
    assert stored_weights(tmp_path).shapes == {"a": ()}
    file.write_bytes(encoded(b'{"a": 1, "a": {"dtype": "F16", "shape": [0]}}'))
    assert read_header(file) == {"a": ("F16", (0,))}


DAMAGED = {
    "empty": b"",
    "cut": b"\x01\x00",
    "no header": encoded(b""),
    "a length of 63 bits": encoded(b"{}", 2**63),
    "over the format's limit": encoded(b"{}", 100_000_001),
    "longer than the file": encoded(b"{} ", 4),
    "no text": encoded(b"\xff" * 8),
    "no object": encoded([1]),
    "no tensor": encoded({"a": 1}),
    "no shape": encoded({"a": {"dtype": "F32"}}),
    "dtype": encoded(tensor([1], dtype=3)),
    "a list as dtype": encoded(tensor([1], dtype=["F32"])),
    "negative": encoded(tensor([-1])),
    "a truth value": encoded(tensor([True])),
    "text as shape": encoded(tensor("34")),
    "64 bits": encoded(tensor([2**63])),
    "64 bits beside 0": encoded(tensor([0, 2**63])),
    "64 bits together": encoded(tensor([2**32, 2**31])),
    "a million sides": encoded(tensor([2**62] * 1_000_000)),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_read_header_of_damaged_file(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    assert stored_weights(tmp_path) is None
    with pytest.raises(UsageError, match="is not a complete safetensors file"):
        weights(tmp_path)


def test_read_header_of_named_pipe(tmp_path):
    """It is not waited for."""
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(OSError, match="Not a regular file"):
        read_header(tmp_path / "model.safetensors")
    assert stored_weights(tmp_path) is None


def test_one_file_comes_before_those_of_an_index(tmp_path):
    """As transformers loads them."""
    (tmp_path / "model.safetensors").write_bytes(encoded(tensor([2])))
    (tmp_path / "part.safetensors").write_bytes(encoded(tensor([3])))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "part.safetensors"}}))
    assert stored_weights(tmp_path).shapes == {"a": (2,)}
    (tmp_path / "model.safetensors").unlink()
    assert stored_weights(tmp_path).shapes == {"a": (3,)}


def test_config_is_found_without_reading_headers(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr("dsrun.models.headers.stored_weights", pytest.fail)
    assert find(str(tmp_path), weights=False).stored is None
