"""Preferences as rows: what the columns mean, what of both answers is learned, which pairs are left out."""

import pytest

from dsrun.errors import UsageError
from dsrun.train.data.encoding.preferences import PreferenceCollator, sides
from dsrun.train.data.overview import preview

IGNORED = -100


@pytest.fixture
def pairs_of(prepare, jsonl, causal):
    """The prepared training rows of these, and the whole PreparedData."""

    def make(rows, **options):
        return prepare(causal, "dpo", train_file=jsonl(rows), **{"validation_split_percentage": 0} | options)

    return make


def texts(tokenizer, row):
    """What is read and what is learned of both answers."""
    found = []
    for side in sides(row):
        learned = [token for token, label in zip(side["input_ids"], side["labels"], strict=True) if label != IGNORED]
        found.append(tuple("".join(tokenizer.convert_ids_to_tokens(ids)) for ids in (side["input_ids"], learned)))
    return found


@pytest.fixture
def only(pairs_of, causal):
    """Both answers of the one row of the training data: [(read, learned)] × 2."""

    def call(row, **options):
        (prepared,) = pairs_of([row], **options).train
        return texts(causal, prepared)

    return call


def test_prompt_joined_with_each_answer(only):
    row = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
    assert only(row) == [("1+1=2</s>", "2</s>"), ("1+1=3</s>", "3</s>")]


def test_question_and_answers_on_lines_of_their_own(only):
    row = {"question": "how?", "chosen": "so", "rejected": "no"}
    assert only(row) == [("how?\nso</s>", "so</s>"), ("how?\nno</s>", "no</s>")]


def test_common_beginning_is_the_prompt(only):
    """Anthropic's HH has no prompt column. A word that only begins alike belongs to the answers."""
    row = {"chosen": "say hi: hello", "rejected": "say hi: help"}
    assert only(row) == [("say hi: hello</s>", "hello</s>"), ("say hi: help</s>", "help</s>")]


ASKED = [{"role": "user", "content": "hi"}]
READ = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n"


def answer(text):
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": ASKED, "chosen": answer("yo"), "rejected": answer("no")},
        {"chosen": ASKED + answer("yo"), "rejected": ASKED + answer("no")},
        {"prompt": "hi", "chosen": ASKED + answer("yo"), "rejected": ASKED + answer("no")},
        {"messages": ASKED, "chosen": "yo", "rejected": "no"},
        {"conversations": [{"from": "human", "value": "hi"}], "chosen": {"from": "gpt", "value": "yo"},
         "rejected": {"from": "gpt", "value": "no"}},
    ],
    ids=["three columns", "repeated", "text and repeated", "answers as texts", "ShareGPT"],
)  # fmt: skip
def test_conversations_in_five_shapes_read_alike(only, row):
    assert only(row) == [(READ.format(text), f"{text}<|im_end|>") for text in ("yo", "no")]


def test_chat_template_applied_to_plain_preferences(only):
    row = {"prompt": "hi", "chosen": "yo", "rejected": "no"}
    assert only(row, apply_chat_template=True) == [(READ.format(t), f"{t}<|im_end|>") for t in ("yo", "no")]


def test_plain_preferences_of_a_chat_model_are_noted(pairs_of):
    data = pairs_of([{"prompt": "hi", "chosen": "yo", "rejected": "no"}])
    assert any("--apply-chat-template" in notice for notice in data.notices)


def test_only_the_answer_of_several_turns_is_learned(only):
    """Earlier turns of the assistant belong to the prompt."""
    talk = [*ASKED, *answer("old"), {"role": "user", "content": "so?"}]
    (_, chosen), (_, rejected) = only({"prompt": talk, "chosen": answer("yo"), "rejected": answer("no")})
    assert (chosen, rejected) == ("yo<|im_end|>", "no<|im_end|>")


def test_pairs_that_teach_nothing_are_left_out(pairs_of, causal):
    """Equal answers, and answers that differ beyond the limit only; a missing answer is counted apart."""
    good = {"prompt": "p", "chosen": "a", "rejected": "b"}
    same, late = {**good, "rejected": "a"}, {"prompt": "p" * 9, "chosen": "a", "rejected": "b"}
    data = pairs_of([good, same, late, {**good, "rejected": None}], max_length=8)
    (row,) = data.train
    assert [learned for _, learned in texts(causal, row)] == ["a</s>", "b</s>"]
    left = {reason: count for reason, (count, *_) in data.counts["train"].left.items()}
    assert left == {"no_loss": 2, "empty": 1}
    assert data.counts["train"].cut == 1


def test_columns_without_answers_are_refused(pairs_of):
    with pytest.raises(UsageError, match=r"columns found: .*; --task dpo reads prompt, chosen and rejected"):
        pairs_of([{"prompt": "p", "completion": "c"}])


def test_batch_has_both_answers_of_each_row(causal):
    collate = PreferenceCollator(pad_id=0, seq2seq=False)
    row = {"input_ids": [5, 6], "labels": [IGNORED, 6], "rejected_ids": [5, 7, 8], "rejected_labels": [IGNORED, 7, 8]}
    batch = collate([row, {**row, "input_ids": [9, 6]}])
    assert batch["input_ids"].tolist() == [[5, 6, 0], [5, 7, 8], [9, 6, 0], [5, 7, 8]]
    assert batch["attention_mask"].sum(1).tolist() == [2, 3, 2, 3]
    assert batch["labels"][0].tolist() == [IGNORED, 6, IGNORED]


def test_streamed_preferences_are_the_prepared_ones(pairs_of):
    rows = [{"prompt": f"{i}+1=", "chosen": str(i + 1), "rejected": "x"} for i in range(5)]
    prepared = list(pairs_of(rows).train)
    assert list(pairs_of(rows, streaming=True).train) == prepared


def test_samples_show_both_answers(pairs_of, causal):
    first, second = preview(pairs_of([{"prompt": "1+1=", "chosen": "2", "rejected": "3"}]), causal)
    assert first == [("chosen: ", "read"), ("1 + 1 =", "read"), ("2 </s>", "learned")]
    assert second[0] == ("rejected: ", "read")
