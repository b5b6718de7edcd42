"""The files of a checkpoint: read by torch and safetensors as those of their own writers, summed on the way."""

import zipfile
from pathlib import Path

import peft
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from dsrun.runs.checksum import ChecksumFile, sum_of
from dsrun.train.checkpoint.snapshot import safetensors_through, write_safetensors, write_torch

TENSORS = {
    "b": torch.arange(6, dtype=torch.bfloat16).view(2, 3).t(),
    "a": torch.randn(5, requires_grad=True),
    "flag": torch.tensor(True),
    "none": torch.empty(0, 4),
}


def same(found, expected):
    return set(found) == set(expected) and all(
        torch.equal(found[name], each) and found[name].dtype == each.dtype for name, each in expected.items()
    )


def test_torch_file_summed_while_written(tmp_path):
    """torch.load reads it, mapped too, and its checksum is that of the file."""
    path = tmp_path / "states.pt"
    with ChecksumFile(path) as file:
        write_torch({"state": TENSORS, "step": 3}, file)
    assert file.entry == sum_of(path)
    for mapped in (False, True):
        found = torch.load(path, mmap=mapped, weights_only=True)
        assert found["step"] == 3
        assert same(found["state"], TENSORS)


def test_torch_file_has_no_second_checksum(tmp_path):
    """torch's own sum of each tensor would cost as much as ours. What others save has it as before."""
    with ChecksumFile(tmp_path / "ours.pt") as file:
        write_torch(torch.ones(1000), file)
    torch.save(torch.ones(1000), tmp_path / "theirs.pt")
    with pytest.raises(zipfile.BadZipFile, match="CRC-32"):
        zipfile.ZipFile(tmp_path / "ours.pt").read("archive/data/0")
    assert zipfile.ZipFile(tmp_path / "theirs.pt").testzip() is None


def test_safetensors_file_summed_while_written(tmp_path):
    path = tmp_path / "model.safetensors"
    with ChecksumFile(path) as file:
        write_safetensors(TENSORS, file)
    assert file.entry == sum_of(path)
    assert same(load_file(path), TENSORS)
    with safe_open(path, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_full_disk_is_an_oserror_of_the_writer():
    """torch alone would raise a RuntimeError without the errno."""
    with pytest.raises(OSError, match="No space left") as raised, ChecksumFile(Path("/dev/full")) as file:
        write_torch(torch.ones(1000), file)
    assert raised.value.errno == 28


def tiny():
    config = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("lora", [False, True])
def test_save_pretrained_hands_over_its_tensors(tmp_path, lora):
    """Transformers and PEFT write nothing themselves, but for other folders and for metadata of their own."""
    model = peft.get_peft_model(tiny(), peft.LoraConfig(target_modules=["q_proj"])) if lora else tiny()
    name = "adapter_model.safetensors" if lora else "model.safetensors"
    given = {}
    with safetensors_through(lambda tensors, file: given.update({file: dict(tensors)}), tmp_path / "here"):
        model.save_pretrained(tmp_path / "here")
        model.save_pretrained(tmp_path / "there")
    assert list(given) == [tmp_path / "here" / name]
    assert not (tmp_path / "here" / name).exists()
    assert same(given[tmp_path / "here" / name], load_file(tmp_path / "there" / name))
    model.save_pretrained(tmp_path / "here")
    assert (tmp_path / "here" / name).exists()
