"""Loss masks of conversations and completions, token by token."""

import pytest

from dsrun.errors import UsageError
from dsrun.train.data.encoding.chat import encode_chat

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


def one(*args):
    """The only sample of a conversation."""
    (sample,) = encode_chat(*args)
    return sample.ids, sample.learned


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
    ids, marks = one(causal, TALK, None, "x")
    assert learned(causal, ids, marks) == "yo<|im_end|>|ok<|im_end|>"
    assert causal.convert_ids_to_tokens(ids)[:4] == ["<|im_start|>", "u", "s", "e"]


def test_chat_loss_mask_from_template_marks(causal):
    causal.chat_template = MARKED
    ids, marks = one(causal, TALK, None, "x")
    assert learned(causal, ids, marks) == "yo<|im_end|>|ok<|im_end|>"


def test_answers_of_template_rewriting_history_learned_apart(causal):
    """The first answer is learned as the model writes it, the second after the history as the model sees it then."""
    causal.chat_template = FORGETFUL
    first, second = encode_chat(causal, TALK, None, "x")
    assert learned(causal, first.ids, first.learned).endswith("yo<|im_end|>")
    assert learned(causal, second.ids, second.learned).endswith("ok<|im_end|>")
    assert "[gone]" in causal.decode(second.ids).replace(" ", "")
    assert (first.answer, second.answer) == (1, 3)


def test_answers_that_cannot_be_told_apart_are_told_by_marks(causal):
    """The template counts all messages at the beginning and each in its answer, which so is another alone."""
    begin, end = "{% generation %}", "{% endgeneration %}"
    counting = (
        "{{ messages | length }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        f"{begin}{{{{ loop.index }}}}:{{{{ m.content }}}}<|im_end|>{end}"
        "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    )
    causal.chat_template = counting.replace(begin, "").replace(end, "")
    with pytest.raises(UsageError) as refused:
        encode_chat(causal, TALK, None, "x")
    assert begin in refused.value.fix
    causal.chat_template = counting
    samples = encode_chat(causal, TALK, None, "x")
    assert [learned(causal, each.ids, each.learned) for each in samples] == ["2:yo<|im_end|>", "4:ok<|im_end|>"]


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
    ids, marks = one(causal, TALK, None, "x")
    assert learned(causal, ids, marks) == "yo\n|ok\n</s>"


def test_answer_that_begins_like_the_header_before_it(causal):
    causal.chat_template = (
        "{% for m in messages %}{{ 'Q ' if m.role == 'user' else 'A ' }}{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}A {% endif %}"
    )
    ids, marks = one(causal, [TALK[0], {"role": "assistant", "content": "A A b"}], None, "x")
    assert learned(causal, ids, marks) == "A A b</s>"


def test_chat_opened_by_assistant(causal):
    ids, marks = one(causal, TALK[1:], None, "x")
    assert learned(causal, ids, marks) == "yo<|im_end|>|ok<|im_end|>"


def test_chat_loss_mask_of_slow_tokenizer(causal):
    class Slow:
        """The same tokenizer without offsets."""

        is_fast = False

        def __getattr__(self, name):
            return getattr(causal, name)

        def __call__(self, text, **how):
            assert "return_offsets_mapping" not in how
            return causal(text, **how)

    ids, marks = one(Slow(), TALK, None, "x")
    assert learned(causal, ids, marks) == "yo<|im_end|>|ok<|im_end|>"


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
    (count, _, first) = data.counts["train"].left["no_loss"]
    assert (count, first.rpartition(" ")[2]) == (1, "1")
    assert data.counts["train"].truncation() == "1 of 2 examples was cut at 4 tokens"
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


def test_prompt_of_conversational_completion_not_learned(causal, prepare, jsonl):
    """The completion alone is learned, whoever spoke in the prompt."""
    file = jsonl([{"prompt": TALK[:3], "completion": TALK[3:]}])
    row = prepare(causal, "causal-lm", train_file=file, validation_split_percentage=0).train[0]
    assert learned(causal, row["input_ids"], masked(row)) == "ok<|im_end|>"


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}])
def test_message_of_weight_0_not_learned(mark, causal, prepare, jsonl):
    """And the template does not see the mark, which it might write down."""
    causal.chat_template = causal.chat_template.replace("m.content }}", "m.content }}{{ m.weight }}{{ m.train }}")
    file = jsonl([{"messages": [TALK[0], {**TALK[1], **mark}, *TALK[2:]]}])
    row = prepare(causal, "causal-lm", train_file=file, validation_split_percentage=0).train[0]
    assert learned(causal, row["input_ids"], masked(row)) == "ok<|im_end|>"
    assert "yo<|im_end|>" in causal.decode(row["input_ids"]).replace(" ", "")


def test_weight_that_is_neither_0_nor_1_rejected(causal, prepare, jsonl):
    file = jsonl([{"messages": [TALK[0], {**TALK[1], "weight": 0.5}]}])
    with pytest.raises(UsageError, match=r"line 1: the weight of a message is 0\.5; it must be 0 or 1"):
        prepare(causal, "causal-lm", train_file=file, validation_split_percentage=0)


@pytest.mark.parametrize("streaming", [False, True])
def test_bad_rows_left_out_and_counted_up_to_their_share(streaming, causal, prepare, jsonl):
    rows = [{"messages": TALK}] * 9
    bad = {"messages": [{"role": "narrator", "content": "x"}]}
    options = {"train_file": jsonl([*rows, bad]), "validation_split_percentage": 0, "streaming": streaming}
    if not streaming:
        with pytest.raises(UsageError, match=r"line 10: unknown role 'narrator'.*--max-bad-rows"):
            prepare(causal, "causal-lm", **options)
    data = prepare(causal, "causal-lm", **options, max_bad_rows=0.1)
    assert len(list(data.train)) == 9
    if not streaming:
        (count, _, first) = data.counts["train"].left["invalid"]
        assert (count, "line 10: " in first) == (1, True)
    else:
        with pytest.raises(UsageError, match="unknown role 'narrator'"):
            list(prepare(causal, "causal-lm", **options, max_bad_rows=0).train)


def test_row_that_the_template_refuses_counted(causal, prepare, jsonl):
    refuse = "{% if messages[0].content == 'no' %}{{ raise_exception('too short') }}{% endif %}"
    causal.chat_template = refuse + FORGETFUL
    file = jsonl([{"messages": TALK}] * 4 + [{"messages": [{"role": "user", "content": "no"}, TALK[1]]}])
    data = prepare(causal, "causal-lm", train_file=file, validation_split_percentage=0, max_bad_rows=0.5)
    # Each conversation became two samples, as the template changes what it shows of the first answer.
    assert len(data.train) == 8
    assert "too short" in data.counts["train"].left["template"][-1]
    assert any("4 of 5 conversations became 8 samples" in notice for notice in data.notices)


CALL = {"function": {"name": "add", "arguments": '{"one": 1}'}}


def test_row_whose_call_the_template_leaves_out_counted_by_a_name_of_its_own(causal, prepare, jsonl):
    called = [TALK[0], {"role": "assistant", "content": None, "tool_calls": [CALL]}, *TALK[2:]]
    options = {"train_file": jsonl([{"messages": TALK}, {"messages": called}]), "validation_split_percentage": 0}
    with pytest.raises(UsageError, match="line 2: the chat template leaves out a call of add"):
        prepare(causal, "causal-lm", **options)
    data = prepare(causal, "causal-lm", **options, max_bad_rows=0.5)
    assert len(data.train) == 1
    assert list(data.counts["train"].left) == ["tool_calls"]


def test_tools_and_reasoning_that_the_template_leaves_out_noted_once(causal, prepare, jsonl):
    thought = [TALK[0], {**TALK[1], "reasoning_content": "hm"}]
    rows = [{"messages": TALK, "tools": None}, {"messages": thought, "tools": [{"name": "add"}]}]
    data = prepare(causal, "causal-lm", train_file=jsonl(rows), validation_split_percentage=0)
    counts = data.counts["train"]
    assert (counts.no_tools, counts.no_reasoning) == (1, 1)
    assert len([notice for notice in data.notices if "leaves out" in notice]) == 2


@pytest.mark.parametrize(
    "written", ["{{ c.function.arguments | tojson }}", "{{ '' + c.function.arguments }}", "{{ c.function.arguments }}"]
)
def test_call_learned_as_the_template_takes_its_arguments(written, causal, prepare, jsonl):
    """As an object, or else as JSON in a text; as Python writes an object it is not JSON."""
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.name }}" + written + "{% endfor %}<|im_end|>"
    causal.chat_template = causal.chat_template.replace("<|im_end|>", calls)
    file = jsonl([{"messages": [TALK[0], {"role": "assistant", "content": None, "tool_calls": [CALL]}]}])
    row = prepare(causal, "causal-lm", train_file=file, validation_split_percentage=0).train[0]
    assert learned(causal, row["input_ids"], masked(row)) == 'add{"one": 1}<|im_end|>'


def test_pairs_become_conversations_on_request(causal, prepare, jsonl):
    rows = [{"instruction": "add", "input": "1+1", "output": "2", "system": "be brief"}]
    options = {"train_file": jsonl(rows), "validation_split_percentage": 0}
    plain = prepare(causal, "causal-lm", **options)
    assert any("--apply-chat-template" in notice for notice in plain.notices)
    data = prepare(causal, "causal-lm", **options, apply_chat_template=True)
    row = data.train[0]
    assert learned(causal, row["input_ids"], masked(row)) == "2<|im_end|>"
    text = causal.decode(row["input_ids"]).replace(" ", "")
    assert text.startswith("<|im_start|>system\nbebrief<|im_end|>\n<|im_start|>user\nadd\n1+1<|im_end|>")
    assert not any("--apply-chat-template" in notice for notice in data.notices)


def test_running_text_does_not_become_a_conversation(causal, prepare, jsonl):
    with pytest.raises(UsageError, match=r"--apply-chat-template: .* has no prompts and answers, but text"):
        prepare(causal, "causal-lm", train_file=jsonl([{"text": "a"}]), apply_chat_template=True)
