"""The operations of the installed DeepSpeed wheel on this GPU, against what they replace."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

# Of fp32 arithmetic in another order, after three steps.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def adam_steps(optimizer_of, device):
    """Three steps from the same weights and gradients; the weights."""
    torch.manual_seed(0)
    start, gradients = torch.randn(1000), torch.randn(3, 1000)
    weight = torch.nn.Parameter(start.to(device))
    optimizer = optimizer_of([weight])
    for gradient in gradients:
        weight.grad = gradient.to(device)
        optimizer.step()
    return weight.detach().cpu()


def plain(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


def test_fused_adam_steps_as_torch():
    from deepspeed.ops.adam import FusedAdam

    fused = adam_steps(lambda parameters: FusedAdam(parameters, lr=1e-2, weight_decay=0.1), "cuda")
    torch.testing.assert_close(fused, adam_steps(plain, "cpu"), **CLOSE)


def test_cpu_adam_steps_as_torch():
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    offloaded = adam_steps(lambda parameters: DeepSpeedCPUAdam(parameters, lr=1e-2, weight_decay=0.1), "cpu")
    torch.testing.assert_close(offloaded, adam_steps(plain, "cpu"), **CLOSE)


def test_torch_fused_adam_steps_as_torch():
    fused = adam_steps(lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1, fused=True), "cuda")
    torch.testing.assert_close(fused, adam_steps(plain, "cpu"), **CLOSE)


def test_wheel_ops_load_without_compiler():
    """Each compiled operation is found in the wheel: no compiler is on PATH."""
    from deepspeed.git_version_info import installed_ops

    if not installed_ops.get("fused_adam"):
        pytest.skip("the installed DeepSpeed was built without operations; `make bench-gpu` installs dsrun's wheel")
    code = (
        "import deepspeed.ops.op_builder as b, deepspeed\n"
        "from deepspeed.git_version_info import installed_ops\n"
        "from deepspeed.ops.op_builder.all_ops import ALL_OPS\n"
        "for name, built in installed_ops.items():\n"
        "    if built and name in ALL_OPS: ALL_OPS[name].load(verbose=False); print(name)\n"
    )
    env = {"PATH": "", "HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "fused_adam" in done.stdout.split()


def test_bf16_and_fp16_products_are_close():
    """Tensor cores multiply in the precisions that runs use."""
    torch.manual_seed(0)
    one, two = torch.randn(256, 256), torch.randn(256, 256)
    exact = one @ two
    for dtype, share in ((torch.bfloat16, 2e-2), (torch.float16, 4e-3)):
        found = (one.to("cuda", dtype) @ two.to("cuda", dtype)).float().cpu()
        assert float((found - exact).norm() / exact.norm()) < share
