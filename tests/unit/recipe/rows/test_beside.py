"""Columns beside those of a layout: each is read, refused or listed, and one of the three only."""

import json

import pytest

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError
from dsrun.recipe.preflight.layouts import CHATS, PAIRS, PROMPTS, TEXTS, LayoutHints, detect
from dsrun.recipe.rows import beside
from dsrun.recipe.rows.normal import normalise

CAUSAL, SEQ2SEQ = LayoutHints("causal-lm"), LayoutHints("seq2seq")
TEMPLATE = LayoutHints("causal-lm", apply_chat_template=True)
DPO, DPO_TEMPLATE = (LayoutHints("causal-lm", preference=True, apply_chat_template=each) for each in (False, True))
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
PAIR = {"source": "one", "target": "unu"}
ANSWERS = {"prompt": "p", "chosen": "good", "rejected": "bad"}

LAYOUTS = {
    "pair": (PAIR, CAUSAL),
    "pair of seq2seq": (PAIR, SEQ2SEQ),
    "instruction": ({"instruction": "add", "input": "1 2", "output": "3"}, CAUSAL),
    "translation": ({"translation": {"en": "one", "ro": "unu"}}, SEQ2SEQ),
    "translation as a conversation": ({"translation": {"en": "one", "ro": "unu"}}, TEMPLATE),
    "text": ({"text": "x"}, CAUSAL),
    "text-piece": ({"text": "x", "starts": True, "ends": True}, CAUSAL),
    "chat": ({"messages": TALK}, CAUSAL),
    "sharegpt": ({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}, CAUSAL),
    "chat of prompt and completion": ({"prompt": TALK[:1], "completion": TALK[1:]}, CAUSAL),
    "chat-pair": (PAIR, TEMPLATE),
    "tokens": ({"input_ids": [5, 6, 7]}, CAUSAL),
    "tokens-labels": ({"input_ids": [5, 6, 7], "labels": [5, 6, 7]}, CAUSAL),
    "tokens of seq2seq": ({"input_ids": [5, 6, 7], "labels": [5, 6]}, SEQ2SEQ),
    "preference": (ANSWERS, DPO),
    "chat-preference": (ANSWERS, DPO_TEMPLATE),
}

VALUES = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "functions": [{"name": "f"}],
    "history": [["a", "b"]],
    "chat_template_kwargs": {"enable_thinking": False},
    "label": False,
    "kto_tag": False,
    "labels": [-100, 6, 7],
    "assistant_masks": [0, 1, 1],
    "completion_mask": [0, 1, 1],
    "attention_mask": [0, 1, 1],
    "position_ids": [0, 1, 0],
    "seq_lengths": [1, 2],
    "starts": False,
    "ends": False,
    "translation": {"de": "eins", "fr": "un"},
    "input_ids": [8, 9],
    "messages": [{"role": "user", "content": "ho"}],
    "conversations": [{"role": "user", "content": "ho"}],
    "score": 0.5,
    "weight": 0,
    "train": False,
}

TABLE = toml_beside(beside.__file__)
NAMED = {name for names in TABLE["read"].values() for each in names.values() for name in each}
NAMED |= {name for rule in TABLE["refused"].values() for name in rule["columns"]}
NAMED |= {name for source, target in PAIRS for name in (*source, target)}
NAMED |= {*CHATS, *TEXTS, "translation", "input_ids", *(name for names in PROMPTS for name in names)}
# Of data by TRL, LLaMA-Factory, OpenAI, Open-Instruct, Magpie, OpenHermes, UltraFeedback, axolotl and transformers.
ELSEWHERE = """id source score weight train dataset category prompt_id margin score_chosen score_rejected length
 ref_chosen_logps ref_rejected_logps parallel_tool_calls documents difficulty reward_model token_type_ids
 special_tokens_mask decoder_input_ids reasoning thinking solution language model url segments
 rejected_ids where bad reason unlearned"""


def read(row, hints):
    layout = detect([*row], row, hints, "data")
    try:
        return layout, normalise(layout, row, "data, row 1")
    except UsageError as error:
        return layout, error


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_column_is_read_refused_or_listed(name):
    row, hints = LAYOUTS[name]
    plain = read(row, hints)[1]
    for column in sorted({*NAMED, *ELSEWHERE.split()} - row.keys()):
        if hints is TEMPLATE and column == "input_ids":
            continue  # tokens, which no template renders: the data are refused
        layout, normal = read({**row, column: VALUES.get(column, "filled")}, hints)
        refused = {each for each, _ in layout.refused}
        assert [column in layout.read, column in refused, column in layout.unread()].count(True) == 1, column
        assert isinstance(normal, UsageError) == (column in refused), column
        if column not in refused:
            # What is read makes another row, what is listed makes none.
            assert (normal != plain) == (column in layout.read), column


@pytest.mark.parametrize("name", LAYOUTS)
def test_refused_columns_without_a_value_do_no_harm(name):
    row, hints = LAYOUTS[name]
    plain = read(row, hints)[1]
    for rule in TABLE["refused"].values():
        for column in rule["columns"]:
            for empty in (None, "", [], {}, "[]", float("nan"), *([True] if rule["value"] == "false" else ())):
                layout, normal = read({**row, column: empty}, hints)
                assert column in layout.read or normal == plain, (column, empty)


@pytest.mark.parametrize("name", LAYOUTS)
def test_ignored_columns_are_as_if_not_there(name):
    row, hints = LAYOUTS[name]
    for column in sorted(NAMED - row.keys()):
        ignoring = LayoutHints(**{**vars(hints), "ignore_columns": (column,)})
        layout, normal = read({**row, column: VALUES.get(column, "filled")}, ignoring)
        assert normal == read(row, hints)[1]
        assert layout.unread() == [column]


def test_a_refusal_names_the_column_and_the_flag():
    error = read({"text": "x", "images": ["a.png"]}, CAUSAL)[1]
    assert error.message.startswith("data, row 1: 'images' ")
    assert "`--ignore-columns images`" in error.fix
    assert "`--apply-chat-template`" in read({**PAIR, "history": [["a", "b"]]}, CAUSAL)[1].fix


def test_label_of_another_kind_is_listed():
    """Classes are no verdict on an answer."""
    for value in (0, 1, "sports"):
        assert read({**PAIR, "label": value}, CAUSAL)[1] == PAIR, value
    assert isinstance(read({**PAIR, "label": "False"}, CAUSAL)[1], UsageError)
    assert read({"text": "x", "label": False}, CAUSAL)[0].unread() == ["label"]


def messages(row, hints=CAUSAL):
    return json.loads(read(row, hints)[1]["messages"])


@pytest.mark.parametrize("column", ["system", "system_prompt", "system_message"])
def test_system_column_begins_a_conversation_without_one(column):
    said = {"role": "system", "content": "be kind"}
    assert messages({"messages": TALK, column: "be kind"}) == [said, *TALK]
    assert messages({"prompt": TALK[:1], "completion": TALK[1:], column: "be kind"})[0] == said
    assert messages({**PAIR, column: "be kind"}, TEMPLATE)[0] == said
    for role in ("system", "developer"):
        own = [{"role": role, "content": "be brief"}, *TALK]
        assert messages({"messages": own, column: "be kind"}) == own


def test_of_several_names_one_is_read_and_the_others_listed():
    layout, _ = read({"messages": TALK, "system_prompt": "a", "system_message": "b"}, CAUSAL)
    assert layout.unread() == ["system_message"]


def test_history_is_earlier_turns_and_learned():
    found = messages({**PAIR, "history": [["a", "b"], ["c", "d"]], "system": "s"}, TEMPLATE)
    assert [each["content"] for each in found] == ["s", "a", "b", "c", "d", "one", "unu"]
    assert not any("unlearned" in each for each in found)
    assert messages({**PAIR, "history": '[["a", "b"]]'}, TEMPLATE)[1] == {"role": "assistant", "content": "b"}
    for wrong in ([["a"]], [["a", None]], ["a", "b"], "a", {"a": "b"}):
        assert isinstance(read({**PAIR, "history": wrong}, TEMPLATE)[1], UsageError), wrong


def test_history_of_preferences_is_not_learned():
    normal = read({**ANSWERS, "history": [["a", "b"]]}, DPO_TEMPLATE)[1]
    assert [each.get("unlearned", False) for each in json.loads(normal["chosen"])] == [False, True, False, False]


def test_functions_are_tools_and_a_function_call_a_tool_call():
    row = {"messages": TALK, "functions": [{"name": "f"}], "tools": [{"type": "function", "function": {"name": "g"}}]}
    tools = json.loads(read(row, CAUSAL)[1]["tools"])
    assert [each["function"]["name"] for each in tools] == ["g", "f"]
    call = {"name": "f", "arguments": "{}"}
    (said,) = messages({"messages": [{"role": "assistant", "content": None, "function_call": call}]})
    assert said == {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}


def labels(**row):
    found = read({"input_ids": [5, 6, 7, 8], **row}, CAUSAL)[1]
    return found if isinstance(found, UsageError) else found["labels"]


def test_masks_say_what_is_learned():
    """As TRL folds them: all of them must agree, and labels win."""
    assert labels(assistant_masks=[0, 0, 1, 1]) == [-100, -100, 7, 8]
    assert labels(completion_mask=[0, 1, 1, 1], assistant_masks=[1, 0, 1, 0]) == [-100, -100, 7, -100]
    assert labels(labels=[-100, 6, 7, 8], assistant_masks=[0, 0, 0, 1]) == [-100, 6, 7, 8]
    assert labels(assistant_masks=[0, 1, 1, 0], attention_mask=[1, 1, 1, 0]) == [-100, 6, 7]
    for name in ("assistant_masks", "completion_mask", "attention_mask", "position_ids"):
        assert name in labels(**{name: [0, 1]}).message


@pytest.mark.parametrize(
    ("row", "lengths"),
    [
        ({"seq_lengths": [1, 3]}, [1, 3]),
        ({"position_ids": [0, 1, 0, 1]}, [2, 2]),
        ({"position_ids": [0, 1, 2, 3]}, [4]),
        ({"position_ids": [1, 0, 1, 2], "attention_mask": [0, 1, 1, 1]}, [3]),
        ({"seq_lengths": [2, 2], "position_ids": [0, 1, 0, 1]}, [2, 2]),
        ({}, None),
        ({"seq_lengths": [1, 2]}, UsageError),
        ({"seq_lengths": [2, 2], "position_ids": [0, 1, 2, 3]}, UsageError),
        ({"position_ids": [0, 2, 3, 4]}, UsageError),
        ({"position_ids": [3, 4, 5, 6]}, UsageError),
    ],
)
def test_documents_of_a_packed_row(row, lengths):
    found = read({"input_ids": [5, 6, 7, 8], **row}, CAUSAL)[1]
    assert type(found) is lengths if lengths is UsageError else found["lengths"] == lengths
