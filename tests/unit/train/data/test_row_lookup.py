"""Rows by their numbers, as `dsrun data` shows them: exactly what is trained, what is cut, why a row is left out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.data.data_request import DataRequest
from dsrun.train.data.mixture import preparation_of
from dsrun.train.data.reading.row_lookup import RowLookup


def ask(name, value):
    return [str(value)] if name.endswith("_file") else value


def request_of(task, **options):
    spec = TrainSpec(task=task, **{name: ask(name, value) for name, value in options.items()})
    kind = "causal-lm" if task == "dpo" else task
    return DataRequest(spec, kind, "bart", None, 1000, splits=frozenset({"train"}))


def find(tokenizer, task, *wanted, split="train", **options):
    lookup = RowLookup(request_of(task, **options), tokenizer, lambda _: None, lambda *_: None)
    return lookup.find(split, [each if isinstance(each, tuple) else (each, each) for each in wanted])["rows"]


def text(sample, *states):
    chosen = [token["text"] for token in sample["tokens"] if not states or token["state"] in states]
    return "".join(chosen).replace(" ", "")


def trained(tokenizer, task, **options):
    """The prepared rows, by the way that training takes."""
    request = request_of(task, validation_split_percentage=0, **options)
    return list(preparation_of(request)(request, tokenizer, notify=lambda _: None, progress=lambda *_: None).train)


TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
ROWS = [
    ("causal-lm", {"messages": TALK}),
    ("causal-lm", {"messages": [*TALK, *TALK]}),
    ("causal-lm", {"messages": TALK[:1]}),
    ("causal-lm", {"prompt": "ask:", "completion": "answers"}),
    ("causal-lm", {"input_ids": [*range(6, 40)], "labels": [-100] * 9 + [*range(15, 40)]}),
    ("seq2seq", {"source": "abcdefghijklmnop", "target": "ponmlkjihgfedcba"}),
    ("dpo", {"prompt": "1+1=", "chosen": "2", "rejected": "three"}),
    ("dpo", {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": [{**TALK[1], "content": "no"}]}),
]
KEPT = ("read", "learned")


def as_trained(row):
    """A prepared row as what is shown of it: side, ids, and which of these are learned."""
    if "rejected_ids" in row:
        pairs = {"chosen": (row["input_ids"], row["labels"]), "rejected": (row["rejected_ids"], row["rejected_labels"])}
    else:
        pairs = {"": (row["input_ids"], row["labels"])}
    return [
        (side, list(ids), [k > 0 and label != -100 for k, label in enumerate(labels)])
        for side, (ids, labels) in pairs.items()
    ]


def as_shown(sample):
    kept = [token for token in sample["tokens"] if token["state"] in KEPT]
    return sample["side"], [token["id"] for token in kept], [token["state"] == "learned" for token in kept]


@pytest.mark.parametrize("limit", [2, 7, 12, 18, 30, 40, 200])
@pytest.mark.parametrize(("task", "raw"), ROWS)
def test_kept_tokens_are_those_that_are_trained(task, raw, limit, request, jsonl):
    """For every kind of rows and any limit; and the cut ones are what a limit above all lengths adds."""
    tokenizer = request.getfixturevalue("seq2seq" if task == "seq2seq" else "causal")
    data = jsonl([raw])
    options = {"train_file": data, "max_length": limit, "max_target_length": limit}
    try:
        rows = trained(tokenizer, task, **options)
    except UsageError:
        rows = []  # no row of the file is left
    (row,) = find(tokenizer, task, 1, **options)
    assert bool(rows) == (row["left_out"] is None)
    if task == "seq2seq":
        expected = [("source", row["input_ids"]) for row in rows] + [("target", row["labels"]) for row in rows]
        assert [as_shown(each)[:2] for each in row["samples"]] == expected
    elif rows:
        assert [as_shown(each) for each in row["samples"]] == [side for each in rows for side in as_trained(each)]
    (whole,) = find(tokenizer, task, 1, train_file=data, max_length=300, max_target_length=300)
    ids = [[[token["id"] for token in each["tokens"]] for each in some["samples"]] for some in (row, whole)]
    assert ids[0] == ids[1]
    assert not any(each["counts"]["cut"] + each["counts"]["lost"] for each in whole["samples"])


@pytest.mark.parametrize("limit", [20, 28, 40, 45, 60, 200])
def test_each_sample_of_a_conversation_is_shown(causal, jsonl, limit):
    """A template that changes earlier answers makes several samples of it, of which some may be left out."""
    causal.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role[0] }}\n"
        "{{ m.content if loop.last or m.role == 'user' else m.content[:1] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>a\n{% endif %}"
    )
    options = {"train_file": jsonl([{"messages": [*TALK, *TALK, *TALK]}]), "max_length": limit}
    (row,) = find(causal, "causal-lm", 1, **options)
    assert len(row["samples"]) == 3
    try:
        rows = trained(causal, "causal-lm", **options)
    except UsageError:
        rows = []
    kept = [as_shown(each) for each in row["samples"] if each["counts"]["learned"]]
    assert kept == [side for each in rows for side in as_trained(each)]
    assert (row["left_out"] == "no_loss") == (len(rows) < 3)


def test_cut_off_tokens_are_marked_with_the_flag_that_raises_the_limit(causal, jsonl):
    data = jsonl([{"prompt": "ask:", "completion": "answer"}])
    ((sample,),) = (row["samples"] for row in find(causal, "causal-lm", 1, train_file=data, max_length=7))
    assert (sample["limit"], sample["flag"]) == (7, "--max-length")
    assert [text(sample, state) for state in ("read", "learned", "cut", "lost")] == ["ask:", "ans", "", "wer</s>"]


def test_end_of_a_cut_source_is_not_what_is_cut(seq2seq, jsonl):
    """The tokenizer ends what it has cut."""
    data = jsonl([{"source": "abcdef", "target": "ghi"}])
    (row,) = find(seq2seq, "seq2seq", 1, train_file=data, max_source_length=4, max_target_length=3)
    source, target = row["samples"]
    assert [text(source, state) for state in ("read", "cut")] == ["abc</s>", "def"]
    assert [text(target, state) for state in ("learned", "lost")] == ["gh</s>", "i"]
    assert (source["flag"], target["flag"]) == ("--max-source-length", "--max-target-length")


REASONS = {
    "no_target": {"prompt": "a", "completion": ""},
    "columns": {"prompt": "a"},
    "invalid": {"prompt": {"a": 1}, "completion": "b"},
    "no_loss": {"prompt": "a" * 99, "completion": "b"},
}


def test_row_that_is_left_out_has_its_reason(causal, jsonl):
    """That of the counts of prepared data."""
    data = jsonl([{"prompt": "a", "completion": "b"}, *REASONS.values()])
    with data.open("a") as file:
        file.write("\nno json\n")
    options = {"train_file": data, "max_length": 50}
    good, *bad = find(causal, "causal-lm", (1, 9), **options)
    assert (good["left_out"], good["raw"]) == (None, None)
    assert {each["where"].rpartition(" ")[2]: each["left_out"] for each in bad} == {
        **{str(number): reason for number, reason in enumerate(REASONS, 2)},
        "7": "unreadable",
    }
    request = request_of("causal-lm", validation_split_percentage=0, max_bad_rows=1.0, **options)
    counts = preparation_of(request)(request, causal, notify=lambda _: None, progress=lambda *_: None).counts["train"]
    assert set(counts.left) == {each["left_out"] for each in bad}
    assert {words for _, _, words in counts.left.values()} == {each["why"] for each in bad}
    assert json.loads(bad[0]["raw"]) == REASONS["no_target"]


def test_numbers_are_those_of_messages(causal, tmp_path):
    """Of a CSV file with a header, a row over two lines, and none."""
    data = tmp_path / "train.csv"
    data.write_text('prompt,completion\na,b\nc,"d\ne"\n\nf,g\n')
    rows = find(causal, "causal-lm", (1, 9), train_file=data)
    assert [(each["row"], each["where"]) for each in rows] == [(k, f"{data}, line {k}") for k in (2, 4, 6)]


@pytest.mark.parametrize("wanted", [4, (4, 9)])
def test_unknown_row_is_refused_with_the_number_of_rows(causal, jsonl, wanted):
    data = jsonl([{"prompt": "a", "completion": "b"}] * 3)
    with pytest.raises(UsageError, match="3 rows") as refused:
        find(causal, "causal-lm", wanted, train_file=data)
    assert refused.value.fix == "--row 3"


def test_first_and_middle_row_by_default(causal, jsonl):
    rows = [{"prompt": str(k), "completion": "b"} for k in range(9)]
    assert [each["row"] for each in find(causal, "causal-lm", train_file=jsonl(rows))] == [1, 5]
    assert [each["row"] for each in find(causal, "causal-lm", train_file=jsonl(rows[:1]))] == [1]


def test_row_of_each_file_with_its_number(causal, jsonl):
    one, two = (jsonl([{"prompt": name, "completion": "b"}] * 2, f"{name}.jsonl") for name in "xy")
    lookup = RowLookup(request_of("causal-lm", train_file=one), causal, lambda _: None, lambda *_: None)
    lookup.spec = replace(lookup.spec, train_file=[str(one), str(two)])
    found = lookup.find("train", [(2, 2)])["rows"]
    assert [each["where"] for each in found] == [f"{one}, line 2", f"{two}, line 2"]


def test_document_shows_its_blocks_and_place(causal, jsonl):
    """What the blocks of the joined text hold, token for token."""
    options = {"train_file": jsonl([{"text": word} for word in ("abcd", "efghijk", "lm")]), "block_size": 6}
    rows = find(causal, "causal-lm", (1, 3), **options)
    sides = [[sample["side"] for sample in row["samples"]] for row in rows]
    assert sides == [
        ["block 1, from token 1 on"],
        ["block 1, from token 6 on", "block 2, from token 1 on", "block 3, from token 1 on"],
        ["block 3, from token 2 on"],
    ]
    tokens = [token for row in rows for sample in row["samples"] for token in sample["tokens"]]
    blocks = trained(causal, "causal-lm", **options)
    assert [token["id"] for token in tokens] == [token for block in blocks for token in block["input_ids"]]
    assert [k for k, token in enumerate(tokens) if token["state"] == "read"] == [0, 6, 12]
    (last,) = find(causal, "causal-lm", 3, **options)
    assert last == rows[2]


def test_rows_of_a_saved_dataset(causal, tmp_path):
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_list([{"prompt": str(k), "completion": "b"} for k in range(3)])
    DatasetDict({"train": rows, "test": rows.select([2])}).save_to_disk(str(tmp_path / "saved"))
    (third,) = find(causal, "causal-lm", 3, dataset=str(tmp_path / "saved"))
    assert third["where"].endswith("(train), row 3")
    (first,) = find(causal, "causal-lm", 1, split="test", dataset=str(tmp_path / "saved"))
    assert text(first["samples"][0]) == text(third["samples"][0]) == "2b</s>"
    with pytest.raises(UsageError, match="no validation data"):
        find(causal, "causal-lm", split="validation", dataset=str(tmp_path / "saved"))
