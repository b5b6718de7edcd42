"""Message: English text wherever it goes, that remembers its template and values."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from dsrun.errors import did_you_mean
from dsrun.findings.finding import Finding
from dsrun.messages import Message, fill, joined, suggestion


@pytest.mark.parametrize(
    ("template", "values", "text"),
    [
        ("{count:,} nodes", {"count": 12000}, "12,000 nodes"),
        ("{gib:.1f} GiB of {name!r}", {"gib": 1.26, "name": "a"}, "1.3 GiB of 'a'"),
        ("stage {zero_optimization.stage}", {"zero_optimization.stage": 3}, "stage 3"),
        ('write {"stage": {stage}}', {"stage": 2}, 'write {"stage": 2}'),
        ("${HOME:-/root} and {}", {}, "${HOME:-/root} and {}"),
        ("{missing} stays", {"other": 1}, "{missing} stays"),
        ("{text}", {"text": "{count}", "count": 1}, "{count}"),
    ],
)
def test_message_is_its_template_with_values(template, values, text):
    """Braces of JSON and bash are no placeholders, and neither is what a value holds."""
    made = Message(template, **values)
    assert made == text == fill(template, values)
    assert made.template == template


@pytest.mark.parametrize("away", [copy.copy, copy.deepcopy, lambda text: pickle.loads(pickle.dumps(text))])
def test_message_taken_elsewhere_is_plain_english(away):
    taken = away(Message("{count} nodes", count=2))
    assert (type(taken), taken) == (str, "2 nodes")


def test_finding_as_json_is_english():
    text = Message("{count} nodes", count=2)
    found = Finding(level="info", code="nodes", message=text, fix=joined(", ", [text, text])).as_dict()
    assert {type(value) for value in found.values()} == {str}
    assert json.loads(json.dumps(found))["fix"] == "2 nodes, 2 nodes"


def test_equal_messages_and_texts_are_one_key():
    assert len({Message("{count} nodes", count=2), Message("2 nodes"), "2 nodes"}) == 1


@pytest.mark.parametrize("otherwise", [None, Message("use AdamW")])
@pytest.mark.parametrize(("name", "known"), [("Adem", ["Adam", "Lion"]), ("x", ["Adam", "Lion"]), ("x", [])])
def test_suggestion_says_what_errors_say(name, known, otherwise):
    assert suggestion(name, known, otherwise) == did_you_mean(name, known, otherwise)
