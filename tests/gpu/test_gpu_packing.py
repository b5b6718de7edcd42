"""Packed rows under the attention kernels that only a GPU has."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from dsrun.train.packing.documents import ATTENTION
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
    if kernel == "sdpa":
        assert verdict.method == "documents"


@pytest.mark.parametrize("window", [None, 16])
def test_kernel_for_documents_looks_where_each_alone_would(window):
    """Torch's own, with grouped heads, and a document longer than the window; against fp32, a call a document."""
    torch.manual_seed(0)
    lengths = (40, 7, 23)
    query, key = (torch.randn(1, heads, sum(lengths), 64, device="cuda", requires_grad=True) for heads in (8, 2))
    ends = torch.tensor([0, *lengths], device="cuda").cumsum(0, dtype=torch.int32)
    module = torch.nn.Module()
    module.num_key_value_groups = 4
    given = {"cu_seq_lens_q": ends, "max_length_q": max(lengths), "sliding_window": window, "scaling": 0.2}
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        output = ATTENTION(module, query.to(dtype), key.to(dtype), key.to(dtype), **given)[0].float()
        found.append((output, *torch.autograd.grad(output.square().sum(), (query, key))))
    for exact, rounded in zip(*found, strict=True):
        assert torch.allclose(exact, rounded, atol=0.03 * float(exact.abs().max()))


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
    """An encoder-decoder: TF32's rounding of its fp32 weights was once taken for a leak."""
    flags = ("--bf16", "true", "--zero", "2", "--max-source-length", "512", "--max-target-length", "512")
    packed = train(t5, tmp_path / "packed", *flags)
    assert packed.facts["packing"]["batches"] == "packed", packed.facts["packing"]
    padded = train(t5, tmp_path / "padded", *flags, "--train-sampling-strategy", "random")
    assert packed.losses[0] == pytest.approx(padded.losses[0], rel=ALIKE)
    assert packed.rows[-1]["padding"] < padded.rows[-1]["padding"]
