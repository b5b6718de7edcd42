"""Checkpoints move between the versions of Python, which pickle DeepSpeed's records differently."""

from __future__ import annotations

import subprocess
import zipfile
from enum import EnumType

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

from dsrun.errors import UsageError
from dsrun.train.checkpoint.layout import layout_of
from dsrun.train.checkpoint.zero_shards import ZeroCheckpoint, load
from tests.interpreters import others
from tests.zero_checkpoints import write_zero

# DeepSpeed's own class, for interpreters without DeepSpeed.
WRITE = """
import enum, pickle, sys, types
class ZeroStageEnum(int, enum.Enum):
    disabled, optimizer_states, gradients, weights, max_stage = 0, 1, 2, 3, 3
names = ["deepspeed", "deepspeed.runtime", "deepspeed.runtime.zero", "deepspeed.runtime.zero.config"]
sys.modules |= {name: types.ModuleType(name) for name in names}
sys.modules[names[-1]].ZeroStageEnum = ZeroStageEnum
ZeroStageEnum.__module__ = names[-1]
sys.stdout.buffer.write(pickle.dumps({"zero_stage": list(ZeroStageEnum)}, protocol=2))
"""


class Pickled:
    """Reduces to what is given."""

    def __init__(self, function, *args):
        self.reduced = (function, args)

    def __reduce__(self):
        return self.reduced


def by_name(stage, protocol):
    """As Python 3.11.2 pickles an Enum."""
    return getattr, (type(stage), stage.name)


def by_value(stage, protocol):
    return type(stage), (stage.value,)


@pytest.mark.parametrize("reduce", [by_name, by_value])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_checkpoint_read_however_enums_are_pickled(tmp_path, monkeypatch, stage, reduce):
    monkeypatch.setattr(ZeroStageEnum, "__reduce_ex__", reduce)
    weights = {"weight": torch.arange(6.0)}
    folder = write_zero(tmp_path / "checkpoint-5", [weights], stage=stage, ranks=2)
    assert layout_of(folder).stage == stage
    assert torch.equal(ZeroCheckpoint(folder).read("weight"), weights["weight"])


def test_enum_of_each_python_here_is_read(tmp_path):
    """Streams that the Pythons of this machine really write."""
    for version, python in others().items():
        stream = subprocess.run([python, "-c", WRITE], capture_output=True, check=True).stdout
        torch.save({}, tmp_path / "empty.pt")
        with zipfile.ZipFile(tmp_path / "empty.pt") as empty, zipfile.ZipFile(tmp_path / "states.pt", "w") as states:
            for name in empty.namelist():
                states.writestr(name, stream if name.endswith("/data.pkl") else empty.read(name))
        assert load(tmp_path / "states.pt") == {"zero_stage": list(ZeroStageEnum)}, version


@pytest.mark.parametrize(
    ("owner", "name"),
    [(ZeroStageEnum, "__class__"), (ZeroStageEnum, "mro"), (LossScaler, "backward"), (torch.Tensor, "numpy")],
)
def test_other_attributes_are_not_unpickled(tmp_path, owner, name):
    torch.save(Pickled(getattr, owner, name), tmp_path / "evil.pt")
    assert isinstance(owner, EnumType) or hasattr(owner, name)
    with pytest.raises(UsageError, match=f"own records: getattr .*{owner.__name__}.*{name}"):
        load(tmp_path / "evil.pt")


@pytest.mark.parametrize("damaged", [b"", b"\x80\x02}q\x00(]K\x01u.", b"\x80\x02q", b"\x80\x02X\xff\xff\xff\x0f."])
def test_damaged_pickle_is_one_line(tmp_path, damaged):
    """Torch's reader fails with whatever error the damage leads to."""
    torch.save({}, tmp_path / "empty.pt")
    with zipfile.ZipFile(tmp_path / "empty.pt") as empty, zipfile.ZipFile(tmp_path / "states.pt", "w") as states:
        for name in empty.namelist():
            states.writestr(name, damaged if name.endswith("/data.pkl") else empty.read(name))
    with pytest.raises(UsageError, match=r"states\.pt: it cannot be read") as error:
        load(tmp_path / "states.pt")
    assert "\n" not in error.value.message
