"""Every layout, as pure values."""

import json

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.preflight.layouts import PAIRS, LayoutHints, detect, translation_keys
from dsrun.recipe.rows.normal import normalise

SEQ2SEQ = LayoutHints("seq2seq")
CAUSAL = LayoutHints("causal-lm")


def read(row, hints):
    layout = detect(list(row), row, hints, "data")
    normal = normalise(layout, row, "data, row 1")
    return layout, normal


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_column_layout_known_pairs(source, target):
    row = {"id": 7, **dict.fromkeys(source, "question"), target: "answer"}
    _, normal = read(row, SEQ2SEQ)
    assert normal == {"source": "\n".join(["question"] * len(source)), "target": "answer"}


def test_instruction_with_empty_input():
    """With an empty input, the source is the instruction alone."""
    _, normal = read({"instruction": "add", "input": "", "output": "3", "text": "all of it"}, CAUSAL)
    assert normal == {"source": "add", "target": "3"}


def test_named_columns_win_over_known_layout():
    hints = LayoutHints("seq2seq", text_column="b", summary_column="a")
    assert read({"a": "x", "b": "y", "source": "s", "target": "t"}, hints)[1] == {
        "source": "y",
        "target": "x",
    }


def test_missing_named_column_suggestion():
    with pytest.raises(UsageError, match=r"no column 'documnet'.*found: document, summary.*did you mean document"):
        detect(["document", "summary"], {}, LayoutHints("seq2seq", text_column="documnet"), "x.json")


@pytest.mark.parametrize("hints", [SEQ2SEQ, CAUSAL])
def test_unknown_columns_error_is_short(hints):
    """It lists what was found, and ends with the flags for it."""
    with pytest.raises(UsageError) as error:
        detect(["foo", "bar"], {"foo": "a", "bar": "b"}, hints, "x.json")
    assert "columns found: foo, bar" in error.value.message
    assert error.value.fix == "add `--text-column foo --summary-column bar`"
    assert len(str(error.value)) < 150


def test_unknown_columns_error_names_twenty():
    names = [f"c{i}" for i in range(5000)]
    with pytest.raises(UsageError, match=r"columns found: c0, .*, c19 and 4,980 more "):
        detect(names, dict.fromkeys(names, "x"), SEQ2SEQ, "x.csv")


def test_text_column_alone_rejected_for_seq2seq():
    with pytest.raises(UsageError, match="columns found: text"):
        detect(["text"], {"text": "x"}, SEQ2SEQ, "x.json")


def test_separator_of_prompt_and_completion():
    """Prompt and completion are joined directly, other pairs by a line break."""
    assert read({"prompt": "2+2=", "completion": "4"}, CAUSAL)[0].separator == ""
    assert read({"source": "one", "target": "unu"}, CAUSAL)[0].separator == "\n"


def test_translation_column():
    row = {"translation": {"en": "one", "ro": "unu"}}
    layout, normal = read(row, LayoutHints("seq2seq", source_lang="ro_RO", target_lang="en_XX"))
    assert normal == {"source": "unu", "target": "one"}
    assert layout.notice is None
    layout, normal = read(row, SEQ2SEQ)
    assert normal == {"source": "one", "target": "unu"}
    assert "en → ro" in layout.notice


def test_other_translation_language_follows_from_one():
    assert translation_keys(["en", "ro"], None, "en", "x") == ("ro", "en")
    assert translation_keys(["en", "ro"], "ro", None, "x") == ("ro", "en")


def test_nllb_language_codes_find_two_letter_keys():
    assert translation_keys(["en", "es", "et"], "est_Latn", "spa_Latn", "x") == ("et", "es")


def test_wrong_translation_language_error_lists_keys():
    with pytest.raises(UsageError, match="--source-lang fr: x has translations for en, ro"):
        translation_keys(["en", "ro"], "fr", "ro", "x")
    with pytest.raises(UsageError, match="--target-lang ro"):
        translation_keys(["en", "ro"], "en", "de", "x")
    with pytest.raises(UsageError, match="hold en, ro, de"):
        translation_keys(["en", "ro", "de"], None, None, "x")
    with pytest.raises(UsageError, match="both 'en'"):
        translation_keys(["en", "ro"], "en", "en", "x")


def test_single_unknown_text_column_is_the_text():
    layout, normal = read({"body_of_page": "hello"}, CAUSAL)
    assert normal["text"] == "hello"
    assert "body_of_page" in layout.notice


def test_messages_lose_empty_keys_of_arrow():
    row = {"messages": [{"role": "user", "content": "hi", "name": None}, {"role": "assistant", "content": "yo"}]}
    normal = read(row, CAUSAL)[1]
    assert json.loads(normal["messages"]) == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo"},
    ]


def test_sharegpt_roles():
    row = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}
    roles = [message["role"] for message in json.loads(read(row, CAUSAL)[1]["messages"])]
    assert roles == ["user", "assistant"]


def test_conversational_prompt_and_completion():
    row = {
        "prompt": [{"role": "user", "content": "hi"}],
        "completion": [{"role": "assistant", "content": "yo"}],
    }
    assert len(json.loads(read(row, CAUSAL)[1]["messages"])) == 2


def test_message_content_parts():
    """Content parts of text are joined, and others refused."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = {"messages": [{"role": "user", "content": parts}]}
    assert json.loads(read(row, CAUSAL)[1]["messages"])[0]["content"] == "ab"
    with pytest.raises(UsageError, match="part of type 'image'"):
        read({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]}, CAUSAL)


def test_images_of_a_message_are_refused():
    """Ollama and vision data sets have them beside the content, where no template of a text model looks."""
    message = {"role": "user", "content": "a"}
    for name, value in (("images", ["a.png"]), ("audio", {"id": "x"})):
        with pytest.raises(UsageError, match=name):
            read({"messages": [{**message, name: value}]}, CAUSAL)
        assert read({"messages": [{**message, name: None}]}, CAUSAL)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "narrator", "content": "x"}], "unknown role 'narrator'"),
        ([{"role": "user"}], "has no content"),
        ([{"rol": "user", "content": "x"}], r"no role; its keys: rol, content \(rename 'rol' to 'role'\)"),
        ([{"content": "x"}], "has no role; its keys: content"),
        ([{"role": "user", "text": "x", "id": 1}], r"no content.*\(rename 'text' to 'content'\)"),
        (["hello"], "must be a dictionary"),
        ({"role": "user"}, "must be a list"),
        ("hello", "must be a list"),
    ],
)
def test_invalid_conversations_rejected(messages, reason):
    with pytest.raises(UsageError, match=reason):
        read({"messages": messages}, CAUSAL)


def test_tool_calls_and_tools_kept_for_template():
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": None}}}
    row = {
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "2"},
        ],
        "tools": [{"name": "f"}],
    }
    normal = read(row, CAUSAL)[1]
    message = json.loads(normal["messages"])[0]
    assert message["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert json.loads(normal["tools"]) == [{"name": "f"}]


def test_numbers_become_text_and_structures_rejected():
    assert read({"source": "one", "target": 1}, SEQ2SEQ)[1]["target"] == "1"
    layout = detect(["source", "target"], {"source": "a", "target": "b"}, SEQ2SEQ, "x")
    with pytest.raises(UsageError, match="row 9: column 'target' contains a list"):
        normalise(layout, {"source": "a", "target": ["b"]}, "x, row 9")


def test_missing_values_become_none():
    layout = detect(["source", "target"], {"source": "a", "target": "b"}, SEQ2SEQ, "x")
    assert normalise(layout, {"source": None, "target": "b"}, "x")["source"] is None
    assert normalise(layout, {"source": "a", "target": ""}, "x")["target"] is None


def test_pretokenised_rows_lose_padding():
    row = {"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0], "labels": [5, 6, -100]}
    assert read(row, CAUSAL)[1] == {"input_ids": [5, 6], "labels": [5, 6], "lengths": None}


def test_pretokenised_seq2seq_labels():
    """Labels of seq2seq are a sequence of their own."""
    row = {"input_ids": [5, 6, 0, 0], "attention_mask": [1, 1, 0, 0], "labels": [7, 8, 9]}
    layout, normal = read(row, SEQ2SEQ)
    assert normal == {"input_ids": [5, 6], "labels": [7, 8, 9], "lengths": None}
    assert layout.unread() == []
    equally_long = {**row, "labels": [7, 8, 9, 1]}
    assert read(equally_long, SEQ2SEQ)[1]["labels"] == [7, 8, 9, 1]


@pytest.mark.parametrize("number", [2**31, -(2**70)])
def test_token_id_beyond_any_vocabulary_rejected(number):
    with pytest.raises(UsageError, match=f"data, row 1: 'input_ids' contains .* not a token id: {number}"):
        read({"input_ids": [3, number]}, CAUSAL)


def test_nan_is_a_missing_text():
    layout = detect(["source", "target"], {"source": "a", "target": "b"}, SEQ2SEQ, "x")
    assert normalise(layout, {"source": "a", "target": float("nan")}, "x") == {"source": "a", "target": None}


@pytest.mark.parametrize(
    "row",
    [
        {"source": "a", "target": "b \ud83d"},
        {"text": "b \ud83d"},
        {"messages": [{"role": "user", "content": "b \ud83d"}]},
    ],
)
def test_lone_surrogate_rejected(row):
    """Half a character is refused, and the error says where it stands."""
    with pytest.raises(UsageError, match=r"data, row 1: column '(target|text|messages)' contains .ud83d, half"):
        read(row, CAUSAL)


def test_tools_column_is_list_or_json():
    talk = {"messages": [{"role": "user", "content": "x"}]}
    assert read({**talk, "tools": " "}, CAUSAL)[1]["tools"] is None
    assert json.loads(read({**talk, "tools": '[{"name": "f", "unit": null}]'}, CAUSAL)[1]["tools"]) == [{"name": "f"}]
    with pytest.raises(UsageError, match="row 1: column 'tools' is not JSON"):
        read({**talk, "tools": "search, calculator"}, CAUSAL)
    with pytest.raises(UsageError, match="row 1: column 'tools' contains a dict, not a list"):
        read({**talk, "tools": {"name": "f"}}, CAUSAL)


def test_tools_column_beside_conversational_prompt():
    row = {
        "prompt": [{"role": "user", "content": "x"}],
        "completion": [{"role": "assistant", "content": "y"}],
        "tools": [{"name": "f"}],
    }
    layout, normal = read(row, CAUSAL)
    assert layout.unread() == []
    assert json.loads(normal["tools"]) == [{"name": "f"}]
    assert [each["role"] for each in json.loads(normal["messages"])] == ["user", "assistant"]


def test_summary_column_of_causal_model_not_ignored():
    """A target column of a causal model is not passed over."""
    hints = LayoutHints("causal-lm", summary_column="foo")
    with pytest.raises(UsageError, match=r"cannot tell .*found: text, foo \(add `--text-column text`\)"):
        detect(["text", "foo"], {"text": "a", "foo": "b"}, hints, "x")
    assert detect(["text", "summary"], {}, LayoutHints("causal-lm", summary_column="summary"), "x").target == "summary"


def test_pretokenised_ids_must_be_integers():
    with pytest.raises(UsageError, match="not a list of whole numbers"):
        read({"input_ids": ["a"]}, CAUSAL)
