"""Loss masks of conversations and completions, token by token."""

import pytest

from dsrun.errors import UsageError
from dsrun.train.data.tokenizer import encode_chat

MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last or m.role != 'assistant' %}{{ m.content }}{% else %}[gone]{% endif %}"
    "<|im_end|>\n{% endfor %}"
)
TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "so?"},
    {"role": "assistant", "content": "ok"},
]


def learned(tokenizer, ids, marks):
    """What is learned, as text; "|" stands between spans."""
    out, before = "", False
    for token, mark in zip(ids, marks, strict=True):
        if mark:
            out += ("" if before or not out else "|") + tokenizer.convert_ids_to_tokens(token)
        before = mark
    return out


def masked(row):
    return [label != -100 for label in row["labels"]]


def test_chat_loss_mask_of_answers_and_end_of_turn(causal):
    """Answers and their end of turn are learned."""
    ids, marks = encode_chat(causal, TALK, None, "x")
    assert learned(causal, ids, marks) == "yo<|im_end|>|ok<|im_end|>"
    assert causal.convert_ids_to_tokens(ids)[:4] == ["<|im_start|>", "u", "s", "e"]


def test_chat_loss_mask_from_template_marks(causal):
    causal.chat_template = MARKED
    ids, marks = encode_chat(causal, TALK, None, "x")
    assert learned(causal, ids, marks) == "yo<|im_end|>|ok<|im_end|>"


def test_chat_template_rewriting_messages_rejected(causal):
    causal.chat_template = FORGETFUL
    with pytest.raises(UsageError, match=r"row 3: the chat template changes earlier messages.*generation"):
        encode_chat(causal, TALK, None, "x, row 3")
    ids, marks = encode_chat(causal, TALK[:2], None, "x")
    assert learned(causal, ids, marks).endswith("yo<|im_end|>")


def test_chat_template_error_gives_reason(causal):
    causal.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(UsageError, match="row 3: the chat template refuses these messages: roles must alternate"):
        encode_chat(causal, TALK, None, "x, row 3")


def test_chat_loss_mask_of_newline_ending_turn(causal):
    """A line break that ends a turn by itself is learned."""
    causal.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    ids, marks = encode_chat(causal, TALK, None, "x")
    assert learned(causal, ids, marks) == "yo\n|ok\n"


def test_chat_opened_by_assistant(causal):
    ids, marks = encode_chat(causal, TALK[1:], None, "x")
    assert learned(causal, ids, marks) == "yo<|im_end|>|ok<|im_end|>"


def test_chat_loss_mask_of_slow_tokenizer(causal):
    class Slow:
        """The same tokenizer without offsets."""

        is_fast = False
        apply_chat_template = causal.apply_chat_template

        def __call__(self, text, **how):
            assert "return_offsets_mapping" not in how
            return causal(text, **how)

    ids, marks = encode_chat(Slow(), TALK, None, "x")
    # Without offsets the line break after the end of turn cannot be told from it.
    assert learned(causal, ids, marks) == "yo<|im_end|>\n|ok<|im_end|>\n"


def test_prepared_chat_rows(causal, prepare, jsonl):
    rows = [{"messages": TALK}, {"messages": TALK[:2]}]
    data = prepare(causal, "causal-lm", train_file=jsonl(rows), validation_split_percentage=0)
    row = data.train[0]
    assert learned(causal, row["input_ids"], masked(row)) == "yo<|im_end|>|ok<|im_end|>"
    assert all(label in (-100, token) for label, token in zip(row["labels"], row["input_ids"], strict=True))


def test_chat_evaluation_rows_keep_texts(causal, prepare, jsonl):
    file = jsonl([{"messages": TALK}])
    data = prepare(causal, "causal-lm", validation_file=file, splits=["validation"])
    assert data.validation[0]["target_text"] == "ok"
    assert "so?" in data.validation[0]["source_text"]


def test_missing_chat_template_rejected(seq2seq, prepare, jsonl):
    with pytest.raises(UsageError, match="the tokenizer has no chat template"):
        prepare(seq2seq, "causal-lm", train_file=jsonl([{"messages": TALK}]), validation_split_percentage=0)


def test_prompt_masked_and_completion_ends_with_eos(causal, prepare, jsonl):
    file = jsonl([{"prompt": "2+2=", "completion": "4"}])
    row = prepare(causal, "causal-lm", train_file=file, validation_split_percentage=0).train[0]
    assert causal.convert_ids_to_tokens(row["input_ids"]) == ["2", "+", "2", "=", "4", "</s>"]
    assert row["labels"] == [-100] * 4 + row["input_ids"][4:]


def test_question_and_answer_joined_by_newline(causal, prepare, jsonl):
    file = jsonl([{"question": "2+2", "answer": "4"}])
    row = prepare(causal, "causal-lm", train_file=file, source_prefix="Q ", validation_split_percentage=0).train[0]
    assert causal.decode(row["input_ids"]).replace(" ", "") == "Q2+2\n4</s>"
    assert row["labels"][-2:] == row["input_ids"][-2:]
    assert set(row["labels"][:-2]) == {-100}


def test_a_prompt_keeps_the_tokens_it_has_alone(merging, prepare, jsonl):
    file = jsonl([{"prompt": "a", "completion": "b"}, {"prompt": "b", "completion": "a"}])
    data = prepare(merging, "causal-lm", train_file=file, validation_split_percentage=0)
    assert merging.convert_ids_to_tokens(data.train[0]["input_ids"]) == ["<s>", "a", "b", "</s>"]
    assert merging.convert_ids_to_tokens(data.train[1]["input_ids"]) == ["<s>", "b", "a", "</s>"]
    assert data.train[0]["labels"][:2] == [-100, -100]


def test_bos_and_eos_not_added_twice(merging, prepare, jsonl):
    file = jsonl([{"prompt": "<s>b", "completion": "a</s>"}])
    row = prepare(merging, "causal-lm", train_file=file, validation_split_percentage=0).train[0]
    assert merging.convert_ids_to_tokens(row["input_ids"]) == ["<s>", "b", "a", "</s>"]


def test_rows_without_target_tokens_dropped_and_counted(causal, prepare, jsonl):
    """Rows without anything to learn are left out and counted."""
    rows = [{"prompt": "123456789", "completion": "x"}, {"prompt": "1", "completion": "x"}]
    data = prepare(causal, "causal-lm", train_file=jsonl(rows), max_length=4, validation_split_percentage=0)
    assert len(data.train) == 1
    assert any("1 of 2 rows have nothing to learn" in n and "line 1" in n for n in data.notices)
    assert data.truncation["train"].sentence() == "1 of 2 examples was cut at 4 tokens"
    with pytest.raises(UsageError, match="none of the 1 rows for train has a token to learn from within 4"):
        prepare(
            causal,
            "causal-lm",
            train_file=jsonl(rows[:1], "b.jsonl"),
            max_length=4,
            validation_split_percentage=0,
        )


def test_held_out_rows_without_target_tokens_rejected(causal, prepare, jsonl):
    """One of the eight is held out, always the same; the others could be trained on."""
    rows = [{"prompt": "1", "completion": str(number)} for number in range(8)]
    both = ["train", "validation"]
    data = prepare(causal, "causal-lm", train_file=jsonl(rows), splits=both)
    held = data.validation[0]["target_text"]
    rows[int(held)]["prompt"] = "123456789"
    with pytest.raises(UsageError, match="none of the 1 rows for validation has a token"):
        prepare(causal, "causal-lm", train_file=jsonl(rows, "b.jsonl"), max_length=4)
