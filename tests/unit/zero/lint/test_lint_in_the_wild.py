"""Keys of configs as they are passed around: what the check says of them, and what the upgrade makes of them."""

from __future__ import annotations

import json

import pytest

from dsrun.zero.lint.config_check import check
from dsrun.zero.lint.upgrade import upgrade

BASE = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}}
AIO = {
    "block_size": 262144,
    "queue_depth": 32,
    "thread_count": 1,
    "single_submit": False,
    "overlap_events": True,
}


def errors(text):
    return [each.code for each in check(text) if each.level == "error"]


def test_aio_in_zero_optimization_moves_to_top_level():
    old = json.dumps(BASE | {"zero_optimization": {"stage": 3, "aio": AIO}})
    new = upgrade(old)

    assert errors(old) == ["unknown_key"]
    assert errors(new.text) == []
    found = json.loads(new.text)
    assert found["zero_optimization"] == {"stage": 3}
    assert found["aio"] == {
        "intra_op_parallelism" if name == "thread_count" else name: value for name, value in AIO.items()
    }


def test_aio_at_top_level_wins():
    new = upgrade(json.dumps(BASE | {"zero_optimization": {"stage": 3, "aio": AIO}, "aio": {"queue_depth": 8}}))

    assert json.loads(new.text)["aio"] == {"queue_depth": 8}


def test_aio_thread_count_is_renamed():
    findings = check(json.dumps(BASE | {"aio": {"thread_count": 1}}))

    assert [each.fix for each in findings if "thread_count" in each.where] == ["did you mean intra_op_parallelism?"]
    both = upgrade(json.dumps(BASE | {"aio": {"thread_count": 1, "intra_op_parallelism": 4}}))
    assert json.loads(both.text)["aio"] == {"intra_op_parallelism": 4}


@pytest.mark.parametrize(
    ("block", "left"),
    [
        ({"disable": False, "backend": "inductor"}, None),
        ({"enabled": True, "backend": "inductor", "kwargs": {}}, None),
        ({"backend": "inductor", "deepcompile": True}, {"deepcompile": True}),
    ],
)
def test_torch_compile_keys_are_removed(block, left):
    old = json.dumps(BASE | {"compile": block})
    new = upgrade(old)

    assert "--torch_compile" in next(each.fix for each in check(old) if each.code == "unknown_key")
    assert json.loads(new.text).get("compile") == left
    assert errors(new.text) == []


def test_byte_order_mark_is_an_error_for_trainer_only():
    """A byte order mark stops the Trainer and not DeepSpeed."""
    text = "\ufeff" + json.dumps(BASE)

    marks = [
        [each.level for each in check(text, target=target) if each.code == "json_extension"]
        for target in (None, "trainer", "deepspeed")
    ]
    assert marks == [["error"], ["error"], ["warning"]]
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert json.loads(upgrade(text).text) == BASE


def test_infinite_batch_size_message():
    """A batch size beyond all numbers is described in words."""
    message = next(each.message for each in check('{"train_batch_size": 1e400}') if each.code == "batch_mismatch")

    assert "not a multiple of 1 on any" in message
