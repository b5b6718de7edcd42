"""Packed rows under the attention kernels that only a GPU has."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from dsrun.train.packing.probe import probe
from tests.gpu.runs import train

KERNELS = ("sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
# One step over packed rows is the same mean over the same kind of samples, not over the same samples.
ALIKE = 0.05


def needs(kernel):
    package = PACKAGES.get(kernel)
    if package and not find_spec(package):
        pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize("kernel", KERNELS)
def test_packed_documents_are_kept_apart(llama, kernel):
    """The probe of a run clears Llama under each kernel, in bf16."""
    needs(kernel)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(llama[0], dtype=torch.bfloat16, attn_implementation=kernel).to("cuda")
    verdict = probe(model)
    assert verdict.method is not None, verdict.reason


@pytest.mark.parametrize("kernel", KERNELS)
def test_packed_run_learns_as_padded(llama, tmp_path, kernel):
    """The first loss, before anything is learned, and a share of padding near zero."""
    needs(kernel)
    flags = ("--bf16", "true", "--zero", "2", "--attn-implementation", kernel)
    packed = train(llama, tmp_path / "packed", *flags)
    assert packed.facts["packing"]["batches"] == "packed", packed.facts["packing"]
    padded = train(llama, tmp_path / "padded", *flags, "--train-sampling-strategy", "random")
    assert packed.losses[0] == pytest.approx(padded.losses[0], rel=ALIKE)
    assert packed.rows[-1]["padding"] < padded.rows[-1]["padding"]


def test_packed_pairs_learn_as_padded(t5, tmp_path):
    """An encoder-decoder, if its probe clears it here; else the run says why and does not pack."""
    flags = ("--bf16", "true", "--zero", "2", "--max-source-length", "512", "--max-target-length", "512")
    packed = train(t5, tmp_path / "packed", *flags)
    padded = train(t5, tmp_path / "padded", *flags, "--train-sampling-strategy", "random")
    assert packed.losses[0] == pytest.approx(padded.losses[0], rel=ALIKE)
    assert packed.rows[-1]["padding"] < padded.rows[-1]["padding"]
