"""Writes what a run of somebody has left behind, without torch: what tests/data/audit/cases.toml says of it."""

import io
import json
import math
import pickle
import types
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_OBJECTS = {
    "json": "ds.json",
    "config": "config.json",
    "adapter": "adapter_config.json",
    "run": "run.json",
    "state": "trainer_state.json",
}
_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


def leave_behind(folder: Path, case: Mapping[str, Any]) -> Path:
    """The files of a case, in `folder`; a log alone stands for itself."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, name in _OBJECTS.items():
        if key in case:
            (folder / name).write_text(json.dumps(case[key]))
    texts = {"requirements.txt": case.get("freeze"), "train.log": case.get("log"), **case.get("texts", {})}
    for name, text in {**texts, **dict.fromkeys(case.get("names", ()), "")}.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, case.get("encoding", "utf-8") if name == "requirements.txt" else "utf-8")
    if "args" in case:
        (folder / "training_args.bin").write_bytes(pickled(case["args"]))
    if "lora_b" in case:
        tensors = {
            f"base_model.model.layers.{place}.q_proj.lora_B.weight": ("F32", [4, 2])
            for place in range(len(case["lora_b"]))
        }
        write_safetensors(folder / "adapter_model.safetensors", tensors, bytes(case["lora_b"]))
    if "weights" in case:
        name = "adapter_model" if "adapter" in case else "model"
        write_safetensors(folder / f"{name}.safetensors", case["weights"], bytes(len(case["weights"])))
    return folder


def pickled(arguments: Mapping[str, Any]) -> bytes:
    """As torch.save writes a Trainer's arguments, whose class this process need not know."""
    made = type(arguments.get("class", "TrainingArguments"), (), {"__module__": "elsewhere"})
    module = types.ModuleType("elsewhere")
    setattr(module, made.__name__, made)
    value = made()
    vars(value).update({name: each for name, each in arguments.items() if name != "class"})
    stream, archive = io.BytesIO(), io.BytesIO()
    import sys

    sys.modules["elsewhere"] = module
    try:
        pickle.dump(value, stream, protocol=2)
    finally:
        del sys.modules["elsewhere"]
    with zipfile.ZipFile(archive, "w") as made_archive:
        made_archive.writestr("training_args/data.pkl", stream.getvalue())
    return archive.getvalue()


def write_safetensors(file: Path, tensors: Mapping[str, Any], fill: bytes) -> None:
    """The tensors of such dtypes and shapes, each of one byte of `fill`."""
    header: dict[str, Any] = {}
    data = b""
    for (name, (dtype, shape)), byte in zip(tensors.items(), fill, strict=True):
        size = math.prod(shape) * _BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes([byte]) * size
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
