"""The linter and the real thing give the same verdict on every config.

An error of the linter that comes before the engine has to be an exception of DeepSpeedConfig (or of the Trainer), and
the other way round. What only shows in the engine is in test_lint_engines.py.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsrun.zero.schema import blocks, removed
from dsrun.zero.view import find_target
from tests.integration.lint_configs import BAD, BAD_FOR_TRAINER, GOOD, TEXTS
from tests.integration.lint_truth import as_text, deepspeed_says, disagreement, linter_says, trainer_says

SHIPPED = sorted((Path(__file__).parents[2] / "ds_configs").glob("*.json"))
# Where the two differ on purpose:
EXCEPTIONS = {
    # DeepSpeed asks the accelerator, which on a login node is not the one of the job.
    ("aio", "use_gds"),
    # With tensor parallelism accelerate starts a process group before it reads on.
    ("tensor_parallel", "autotp_size"),
}
SCALARS: list[Any] = [
    True, False, None, 0, 1, 2, -1, 7, 10**20, 1.0, 0.0, 2.5, 0.5, -0.5, 1e30, float("nan"), "8", "-8", " 8 ",
    "1_000", "8.0", "8.5", "1e3", "08", "", "true", "True", "YES", "on", " true", "t", "0", "1", "3", "nan", "inf",
    "abc", "auto", "cpu", "none", "fp32", "bf16", "mean", "warn", "Fast", "٣",
]  # fmt: skip
PROBES = [*SCALARS, [], [1], ["a"], ["z1"], {}, {"a": 1}]
FEW_PROBES = [True, None, 8, "8", "abc", "auto", [], {}]


def with_key(block: str, key: str, value: Any) -> dict[str, Any]:
    """A config that runs but for this key."""
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    config["zero_optimization"] = {}
    inner = config
    for name in block.split(".") if block else []:
        inner = inner.setdefault(name, {})
    if block in ("optimizer", "scheduler"):
        inner["type"] = "AdamW" if block == "optimizer" else "WarmupLR"
    inner[key] = value
    return config


def spellings(block: str) -> list[str]:
    return [*blocks()[block].spellings, *removed(block), "nonsense", "self", "strict"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("block", blocks())
def test_lint_agrees_with_deepspeed_on_every_key_and_type(block):
    """Every key of DeepSpeed is tried with every kind of value."""
    found = []
    for key in spellings(block):
        for value in PROBES:
            text = json.dumps(with_key(block, key, value))
            if (block, key) in EXCEPTIONS:
                continue
            truth, ours = deepspeed_says(json.loads(text)), linter_says(text, "deepspeed")
            if bool(truth) != bool(ours):
                found.append(f"{text}\n  truth: {truth[:200] or 'runs'}\n  linter: {ours or 'no error'}")
    assert not found, "\n".join(found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("block", blocks())
def test_lint_agrees_with_trainer_on_every_deepspeed_key(block):
    """Every key of DeepSpeed is tried under the Trainer."""
    cases = [(key, value) for key in spellings(block) for value in FEW_PROBES if (block, key) not in EXCEPTIONS]
    found = [disagreement(json.dumps(with_key(block, key, value)), "trainer") for key, value in cases]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.parametrize("config", GOOD, ids=lambda config: ",".join(config)[:60])
def test_lint_reports_no_error_for_valid_config(config):
    target = find_target(config, None)
    assert disagreement(as_text(config), target) == ""
    assert linter_says(as_text(config), target) == []


@pytest.mark.parametrize(("code", "config"), BAD, ids=lambda case: case if isinstance(case, str) else "")
def test_lint_reports_expected_error_for_invalid_config(code, config):
    """DeepSpeed refuses a bad config, and the linter reports the error it deserves."""
    text = as_text(config)
    assert deepspeed_says(copy.deepcopy(config))
    assert any(each.startswith(f"{code} ") for each in linter_says(text, "deepspeed")), linter_says(text, "deepspeed")


@pytest.mark.parametrize(("code", "config"), BAD_FOR_TRAINER, ids=lambda case: case if isinstance(case, str) else "")
@pytest.mark.parametrize("bf16", [False, True])
def test_lint_reports_error_of_trainer_alone(code, config, bf16):
    """Also when the linter knows none of the flags."""
    text = as_text(config)
    assert deepspeed_says(text.replace('"auto"', "1")) == ""
    assert trainer_says(text, bf16=bf16)
    for knowing in (True, False):
        found = linter_says(text, "trainer", bf16=bf16, knowing=knowing)
        assert [each.partition(" ")[0] for each in found] == [code]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_deepspeed_configs_pass_lint_and_parse(path):
    """The shipped configs have no error and are accepted by DeepSpeed or the Trainer."""
    text = path.read_text(encoding="utf-8")
    config = json.loads(text)
    if find_target(config, None) == "trainer":
        bf16 = config["bf16"]["enabled"] is True  # what needs bf16 asks for the flag
        assert linter_says(text, "trainer", bf16=bf16) == []
        assert trainer_says(text, bf16=bf16) == ""
    else:  # written for some number of ranks; here there is one
        config["train_batch_size"] = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
        assert linter_says(json.dumps(config), "deepspeed") == []
        assert deepspeed_says(config) == ""


@pytest.mark.parametrize(("text", "trainer_runs", "deepspeed_runs"), TEXTS)
def test_lint_agrees_on_malformed_json(text, trainer_runs, deepspeed_runs):
    """Linter, Trainer and DeepSpeed agree on text that is not quite JSON."""
    assert bool(trainer_says(text)) is not trainer_runs
    assert bool(deepspeed_says(text)) is not deepspeed_runs
    assert bool(linter_says(text, "trainer")) is not trainer_runs
    assert bool(linter_says(text, "deepspeed")) is not deepspeed_runs


# -- mutations ----------------------------------------------------------------------------------------------------

Path_ = tuple[str, ...]


def paths(config: dict[str, Any], at: Path_ = ()) -> list[Path_]:
    found: list[Path_] = []
    for key, value in config.items():
        found.append((*at, key))
        if isinstance(value, dict):
            found += paths(value, (*at, key))
    return found


def holder(config: dict[str, Any], path: Path_) -> dict[str, Any]:
    for key in path[:-1]:
        config = config[key]
    return config


def typo(name: str, at: int) -> str:
    at %= len(name)
    return name[:at] + name[at + 1 :] if len(name) > 1 else name + "x"


OLD = {
    "cpu_offload": True, "cpu_offload_param": True, "cpu_offload_use_pin_memory": True, "cpu_offload_params": True,
    "stage3_gather_fp16_weights_on_model_save": True, "mics_shard_size": 1, "legacy_stage1": False,
}  # fmt: skip


@st.composite
def mutated(draw, bases: list[dict[str, Any]]) -> dict[str, Any]:
    """One of the configs with one to three things changed."""
    config = copy.deepcopy(draw(st.sampled_from(bases)))
    for _ in range(draw(st.integers(1, 3))):
        known = paths(config)
        if not known:
            break
        path = draw(st.sampled_from(known))
        inside, name = holder(config, path), path[-1]
        match draw(st.sampled_from(("drop", "rename", "retype", "range", "move", "old", "removed", "auto"))):
            case "drop":
                del inside[name]
            case "rename":
                inside[typo(name, draw(st.integers(0, 40)))] = inside.pop(name)
            case "retype":
                inside[name] = copy.deepcopy(draw(st.sampled_from(PROBES)))
            case "range":
                inside[name] = draw(st.sampled_from([-1, 0, 1e12, 0.5, 3, 4, 64]))
            case "move":
                homes = [each for each in known if isinstance(holder(config, each)[each[-1]], dict)]
                if homes and isinstance(inside[name], int | float | str):
                    home = draw(st.sampled_from(homes))
                    holder(config, home)[home[-1]][name] = inside.pop(name)
            case "old":
                old = draw(st.sampled_from(sorted(OLD)))
                if isinstance(config.get("zero_optimization"), dict):
                    config["zero_optimization"][old] = OLD[old]
            case "removed":
                config[draw(st.sampled_from(removed("")))] = {"enabled": False}
            case "auto":
                inside[name] = "auto"
    return config


def doubled(config: dict[str, Any], path: Path_) -> str:
    """The config as text, with one key standing twice."""
    text, mark = json.dumps(config), "\0"
    holder(marked := copy.deepcopy(config), path)[mark] = holder(config, path)[path[-1]]
    return json.dumps(marked).replace(json.dumps(mark), json.dumps(path[-1])) or text


def excepted(config: dict[str, Any]) -> bool:
    aio, parallel = config.get("aio"), config.get("tensor_parallel")
    return (isinstance(aio, dict) and bool(aio.get("use_gds"))) or (
        isinstance(parallel, dict) and parallel.get("autotp_size") not in (None, 0, 1)
    )


EASY = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
FOR_DEEPSPEED = [config for config in GOOD if find_target(config, None) == "deepspeed"]
FOR_TRAINER = [config for config in GOOD if find_target(config, None) == "trainer"]


@pytest.mark.exhaustive
@settings(EASY, max_examples=600)
@given(mutated(FOR_DEEPSPEED))
def test_lint_agrees_with_deepspeed_on_mutated_configs(config):
    # DeepSpeed's Hjson reader takes NaN, which is no JSON, for a text.
    if not excepted(config) and "NaN" not in as_text(config):
        assert disagreement(as_text(config), "deepspeed") == ""
        assert no_false_alarm(as_text(config))


def no_false_alarm(text: str) -> bool:
    """Told nothing at all, the linter still has no error for what runs (test_text_… is about what is no JSON)."""
    says = trainer_says if find_target(json.loads(text), None) == "trainer" else deepspeed_says
    return not linter_says(text, None, knowing=False) or bool(says(text))


@pytest.mark.exhaustive
@settings(EASY, max_examples=500)
@given(mutated(FOR_TRAINER))
def test_lint_agrees_with_trainer_on_mutated_configs(config):
    if not excepted(config):
        assert disagreement(as_text(config), "trainer") == ""
        assert no_false_alarm(as_text(config))


@settings(EASY, max_examples=60)
@given(st.data())
def test_lint_reports_duplicate_keys(data):
    config = data.draw(st.sampled_from(FOR_DEEPSPEED))
    text = doubled(config, data.draw(st.sampled_from(paths(config))))
    assert disagreement(text, "deepspeed") == ""
    assert any(each.startswith("duplicate_key") for each in linter_says(text, "deepspeed"))
