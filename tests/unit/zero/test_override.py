"""--set KEY=VALUE: every key of DeepSpeed's JSON, with the type that it takes."""

from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.zero.generate.blocks import HardwareFacts
from dsrun.zero.generate.config import generate, overrides
from dsrun.zero.generate.explain import explain, notices
from dsrun.zero.generate.spec import ZeroSpec
from dsrun.zero.schema import blocks

ZERO = "zero_optimization"


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (f"{ZERO}.stage3_max_live_parameters=1e8", 100_000_000),
        (f"{ZERO}.overlap_comm=true", True),
        (f"{ZERO}.leaf_module.classes=A,B", ["A", "B"]),
        (f'{ZERO}.leaf_module.classes=["A"]', ["A"]),
        ("wandb.project=42", "42"),
        ("wandb.project=a=b", "a=b"),
        ("data_types.grad_accum_dtype=fp32", "fp32"),
        ("optimizer.params.amsgrad=true", True),
        ("steps_per_print=null", None),
        ("gradient_clipping=auto", "auto"),
        ('aio={"use_gds": true}', {"use_gds": True}),
    ],
)
def test_override_has_type_of_its_key(word, value):
    (found,) = overrides((word,)).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("stage", "--set stage is not KEY=VALUE"),
        ("=3", "--set =3 is not KEY=VALUE"),
        ("stage3_max_live_parameters=3", f"did you mean {ZERO}.stage3_max_live_parameters?"),
        (f"{ZERO}.overlap_com=true", f"did you mean {ZERO}.overlap_comm?"),
        ("nonsense.key=1", "docs/config.md lists the keys"),
        (f"{ZERO}.stage=two", "one of 0, 1, 2, 3 is expected"),
        (f"{ZERO}.reduce_bucket_size=-5", "a value above 0 is expected"),
        (f"{ZERO}.reduce_bucket_size=1.5", "a whole number is expected"),
        (f"{ZERO}.zenflow=on", "an object {…} is expected"),
        ("gradient_clipping=nan", "not a number that JSON can hold"),
        ("gradient_clipping=1e999", "not a number that JSON can hold"),
        ("optimizer.params.betas=[0.9, NaN]", "not a number that JSON can hold"),
        (f"{ZERO}.stage={'[' * 100_000}", "one of 0, 1, 2, 3 is expected"),
    ],
)
def test_invalid_override_is_refused(word, said):
    with pytest.raises(UsageError) as error:
        overrides((word,))
    assert said in str(error.value)


def test_override_wins_over_flags_and_presets():
    key = f"{ZERO}.reduce_bucket_size"
    asked = ZeroSpec(reduce_bucket_size=12, overrides=(f"{key}=13", f"{key}=5e8"))
    assert generate(asked)[ZERO]["reduce_bucket_size"] == 500_000_000
    rows = {row.key: row for row in explain(asked, HardwareFacts())}
    assert rows[key].why == f"asked by --set {key}=5e8"
    assert rows[key].does == "elements in one gradient bucket"


def test_block_of_override_is_switched_on():
    config = generate(ZeroSpec(overrides=("wandb.project=x", "flops_profiler.profile_step=3")))
    assert config["wandb"] == {"enabled": True, "project": "x"}
    assert config["flops_profiler"] == {"enabled": True, "profile_step": 3}
    # Not one that the configuration decides about, nor one that --set itself switches off.
    assert generate(ZeroSpec(overrides=("fp16.hysteresis=3",)))["fp16"]["enabled"] == "auto"
    off = generate(ZeroSpec(overrides=("wandb.project=x", "wandb.enabled=false")))
    assert off["wandb"]["enabled"] is False


def test_linter_warns_of_override():
    lines = notices(ZeroSpec(overrides=(f"{ZERO}.reduce_bucket_size=2000000000",)), HardwareFacts())
    assert any("takes 3.7 GiB" in line for line in lines)


SAMPLES = {
    "bool": "true",
    "int": "1",
    "float": "0.5",
    "str": "x",
    "path": "x",
    "list": "[]",
    "dict": "{}",
    "any": "1",
}


def test_every_key_of_deepspeed_can_be_set():
    for block, known in blocks().items():
        for key, entry in known.keys.items():
            path = f"{block}.{key}" if block else key
            kinds = entry.get("types") or [entry.get("type", "dict")]
            if kinds == ["never"]:
                continue
            text = str(entry["choices"][0]) if "choices" in entry else SAMPLES.get(kinds[0], "{}")
            text = str(entry["ge"]) if "ge" in entry and entry["ge"] > 1 else text
            assert path in overrides((f"{path}={text}",))
