from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.precision import decide_precision


def choose(given=None, *, model="llama", bf16=True, device="cuda", deepspeed=None, force=False):
    return decide_precision(
        given or {}, model_type=model, bf16_supported=bf16, device=device, deepspeed=deepspeed, force=force
    )


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({}, "bf16"),
        ({"bf16": False}, "fp32"),
        ({"given": {"bf16": False}}, "fp32"),
        ({"given": {"fp16": True}}, "fp16"),
        ({"given": {"bf16": True}, "bf16": False, "device": "cpu"}, "bf16"),
        ({"deepspeed": {"bf16": {"enabled": "auto"}}}, "bf16"),
        ({"deepspeed": {"bf16": {"enabled": True}}, "bf16": False, "device": "cpu"}, "bf16"),
        ({"deepspeed": {"fp16": {"enabled": True}}}, "fp16"),
        ({"deepspeed": {"bf16": {"enabled": False}}}, "fp32"),
        ({"given": {"bf16": False}, "deepspeed": {"bf16": {"enabled": "auto"}}}, "fp32"),
    ],
)
def test_precision_from_flags_json_and_hardware(case, expected):
    """Flags win over the JSON, and both over the hardware."""
    assert choose(**case) == expected


@pytest.mark.parametrize("model", ["t5", "mt5", "longt5"])
def test_fp16_rejected_where_it_overflows(model):
    with pytest.raises(UsageError, match=r"overflow in fp16.*--bf16"):
        choose({"fp16": True}, model=model)
    assert choose({"fp16": True}, model=model, force=True) == "fp16"


def test_fp16_rejected_on_cpu():
    with pytest.raises(UsageError, match=r"needs a GPU.*--bf16"):
        choose({"fp16": True}, device="cpu")
    assert choose({"fp16": True}, device="cpu", force=True) == "fp16"


def test_bf16_rejected_on_gpu_that_only_emulates_it():
    with pytest.raises(UsageError, match=r"does not compute in bf16.*--fp16"):
        choose({"bf16": True}, bf16=False)
