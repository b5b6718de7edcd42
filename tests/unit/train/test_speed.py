"""What --speed chooses of TF32, Liger kernels, fused AdamW and compilation, and which flag refuses it."""

from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.train.base.console import Internal
from dsrun.train.base.speed import REGIONAL, SpeedFacts, choices, environment, lines, values

AMPERE = {"device": "cuda", "capability": (8, 0), "liger": True}
DEEP = {"compile": {"deepcompile": True}, "zero_optimization": {"stage": 3}}


def facts(mode="auto", *, device="cpu", given=None, **more):
    return SpeedFacts(mode=mode, device=device, given=given or {}, **more)


@pytest.mark.parametrize(
    ("asked", "set_by_speed"),
    [
        (facts(), {"optim": "adamw_torch_fused"}),
        (facts("safe"), {"optim": "adamw_torch"}),
        (facts(**AMPERE), {"tf32": True, "use_liger_kernel": True, "optim": "adamw_torch_fused"}),
        (facts("safe", **AMPERE), {"tf32": False, "use_liger_kernel": False, "optim": "adamw_torch"}),
        (
            facts(device="cuda", capability=(7, 5)),
            {"tf32": False, "use_liger_kernel": False, "optim": "adamw_torch_fused"},
        ),
        (facts(deepspeed={"optimizer": {"type": "AdamW"}}), {}),
        (facts(device="cuda", capability=(9, 0), deepspeed=DEEP, given={"optim": "sgd"}), {
            "tf32": True, "use_liger_kernel": False, "torch_compile": True,
        }),
    ],
)  # fmt: skip
def test_values_by_mode_and_hardware(asked, set_by_speed):
    assert values(asked) == set_by_speed


@pytest.mark.parametrize("mode", ["auto", "safe"])
@pytest.mark.parametrize("on", [True, False])
def test_given_training_arguments_win(mode, on):
    given = {
        "tf32": on,
        "use_liger_kernel": on,
        "optim": "adamw_torch_fused" if on else "adamw_torch",
        "torch_compile": on,
    }
    asked = facts(mode, given=given, **AMPERE)
    assert values(asked) == {}
    assert {each["applied"] for each in choices(asked)} == {on}
    assert environment(asked) == ({REGIONAL: "true"} if on else {})


@pytest.mark.parametrize("flag", ["torch_compile", "torch_compile_backend", "torch_compile_mode"])
def test_compilation_under_zero_3_refused(flag):
    """A backend or a mode switches the Trainer's compilation on by itself."""
    sharded = {"zero_optimization": {"stage": 3}}
    with pytest.raises(UsageError, match=f"--{flag}: torch.compile"):
        choices(facts(given={flag: "eager"}, deepspeed=sharded, **AMPERE))
    assert choices(facts(deepspeed=sharded))


def test_deepcompile_calls_compile_of_the_whole_model():
    """Its passes rewrite one graph, which begins at engine.compile()."""
    asked = facts(deepspeed=DEEP, **AMPERE)
    assert environment(asked) == {REGIONAL: "false"}
    assert "DeepCompile" in lines(choices(asked))[0]
    assert environment(facts(deepspeed=DEEP, given={"torch_compile": False}, **AMPERE)) == {}


def test_deepcompile_on_cpus_refused():
    with pytest.raises(UsageError, match="CUDA alone"):
        choices(facts(deepspeed=DEEP))


def test_line_names_what_is_applied_and_why():
    names, reasons = lines(choices(facts(**AMPERE)))
    assert names == "TF32, Liger kernels, fused AdamW"
    assert isinstance(reasons, Internal)
    assert lines(choices(facts("safe", **AMPERE)))[0] == "nothing applied"
