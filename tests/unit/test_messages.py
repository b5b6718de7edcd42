"""Message: English text wherever it goes, that remembers its template and values."""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path

import pytest

from dsrun.errors import did_you_mean
from dsrun.findings.finding import Finding
from dsrun.messages import _COUNTED, Message, fill, joined, suggestion

ROOT = Path(__file__).parents[2]


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
        ("{a} of {b} nodes; {a} GPUs are there", {"a": 1, "b": 2}, "1 of 2 nodes; 1 GPU is there"),
        ("{a} other processes of {name!r}", {"a": 1, "name": "1 nodes"}, "1 other process of '1 nodes'"),
    ],
)
def test_message_is_its_template_with_values(template, values, text):
    """Braces of JSON and bash are no placeholders, and neither is what a value holds."""
    made = Message(template, **values)
    assert made == text == fill(template, values)
    assert made.template == template


# Of a template: what is a number by its form or its name, and a word that may be a noun in the plural.
NUMBER = re.compile(
    r"\{(?:\w+:[^{}]*,|count|number|nodes|gpus|ranks|tasks|rows|most|total)\} (?:[a-z]+ )?([A-Za-z]+s)\b"
)
NO_NOUNS = {"is", "has", "starts", "this", "waits", "others", "its", "trains", "counts"}


def test_what_texts_count_is_known_as_a_noun():
    """Else they would say "1 widgets": a new noun belongs into dsrun/messages.py."""
    texts = "\n".join(file.read_text() for file in (ROOT / "dsrun").rglob("*.toml"))
    assert {found[1] for found in NUMBER.finditer(texts) if not _COUNTED.match(found[0])} - NO_NOUNS == set()


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
