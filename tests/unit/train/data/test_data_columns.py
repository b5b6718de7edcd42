"""Columns beside those of a layout, from every source: what reaches the samples, and what is listed as not read."""

import pytest
from datasets import Dataset

from dsrun.errors import UsageError
from dsrun.train.data.overview import data_facts, data_rows

NO_HOLD_OUT = {"validation_split_percentage": 0}
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
EXTRA = {"id": 1, "source": "web", "score": 0.5}
ROWS = {
    "causal-lm": {
        "pair": {"prompt": "ab", "completion": "cd"},
        "text": {"text": "abcd"},
        "chat": {"messages": TALK},
        "tokens": {"input_ids": [7, 8, 9], "labels": [7, 8, 9]},
    },
    "dpo": {
        "preference": {"prompt": "ab", "chosen": "c", "rejected": "d"},
        "chat-preference": {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": [{**TALK[1], "content": "no"}]},
    },
}
LAYOUTS = [(task, row) for task, rows in ROWS.items() for row in rows.values()]


def unread(data):
    return {each["name"]: each["unread"] for each in data_facts(data)["splits"]}


def saved(rows, folder):
    Dataset.from_list(rows).save_to_disk(str(folder))
    return {"dataset": folder}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("source", ["file", "saved"])
@pytest.mark.parametrize(("task", "row"), LAYOUTS, ids=[name for rows in ROWS.values() for name in rows])
def test_what_nothing_reads_is_listed(task, row, source, streaming, causal, prepare, jsonl, tmp_path):
    rows = [{**row, **EXTRA}] * 3
    given = {"train_file": jsonl(rows)} if source == "file" else saved(rows, tmp_path / "saved")
    data = prepare(causal, task, streaming=streaming, **given, **NO_HOLD_OUT)
    assert unread(data) == {"train": ["id", "source", "score"]}
    assert ("not read", "train: id, source, score") in data_rows(data, data_facts(data))
    assert "labels" in next(iter(data.train))


def test_columns_behind_the_first_rows_are_listed(causal, prepare, jsonl):
    rows = [{"text": "ab"}] * 500 + [{"text": "ab", "system": "s", "late": 1}, {"text": "a", "later": 2}]
    assert unread(prepare(causal, "causal-lm", train_file=jsonl(rows), **NO_HOLD_OUT)) == {
        "train": ["system", "late", "later"]
    }


@pytest.mark.parametrize("row", [{"text": "abcd" * 99}, {"prompt": "ab", "completion": "cd"}])
def test_held_out_rows_have_the_same_columns(row, causal, prepare, jsonl):
    file = jsonl([{**row, "id": 1}] * 9)
    data = prepare(causal, "causal-lm", splits=("train", "validation"), train_file=file, max_length=64)
    assert unread(data) == {"train": ["id"], "validation": ["id"]}
    assert ("not read", "train, validation: id") in data_rows(data, data_facts(data))


def test_lines_of_text_and_tokens_have_nothing_unread(causal, prepare, tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "a.bin").write_bytes(bytes([7, 0, 8, 0]))
    for name in ("a.txt", "a.bin"):
        data = prepare(causal, "causal-lm", train_file=tmp_path / name, **NO_HOLD_OUT)
        assert unread(data) == {"train": []}
        assert "not read" not in dict(data_rows(data, data_facts(data)))


def test_sets_of_a_mixture_have_their_own(causal, prepare, jsonl):
    files = {
        "a": jsonl([{"text": "ab", "id": 1}] * 3, "a.jsonl"),
        "b": jsonl([{"messages": TALK, "url": ""}] * 3, "b.jsonl"),
        "c": jsonl([{"prompt": "a", "completion": "b", "id": 1}] * 3, "c.jsonl"),
        "d": jsonl([{"text": "ab"}] * 3, "d.jsonl"),
    }
    sets = {name: {"train_file": [str(file)]} for name, file in files.items()}
    data = prepare(causal, "causal-lm", mix={"sets": sets}, **NO_HOLD_OUT)
    assert unread(data) == {"a train": ["id"], "b train": ["url"], "c train": ["id"], "d train": []}
    shown = [line for name, line in data_rows(data, data_facts(data)) if name == "not read"]
    assert shown == ["a train, c train: id", "b train: url"]


def test_many_and_unnamed_columns_make_a_short_line(causal, prepare, tmp_path):
    names = ["", *(f"c{i}" for i in range(500))]
    (tmp_path / "a.csv").write_text(",".join(["text", *names]) + "\n" + ",".join(["ab"] * 501 + ["x"]) + "\n")
    data = prepare(causal, "causal-lm", train_file=tmp_path / "a.csv", **NO_HOLD_OUT)
    assert unread(data) == {"train": names}
    assert len(dict(data_rows(data, data_facts(data)))["not read"]) < 200


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKS = "{% if enable_thinking is defined and not enable_thinking %}!{% endif %}" + TEMPLATE


@pytest.mark.parametrize("kind", ["file", "saved", "stream"])
@pytest.mark.parametrize("task", ["causal-lm", "dpo"])
def test_template_options_of_a_row_reach_the_template(task, kind, causal, prepare, jsonl, tmp_path):
    causal.chat_template = THINKS
    row = ROWS[task]["chat" if task == "causal-lm" else "chat-preference"]
    rows = [{**row, "chat_template_kwargs": {"enable_thinking": each}} for each in (True, False)]
    given = saved(rows, tmp_path / "saved") if kind == "saved" else {"train_file": jsonl(rows)}
    data = prepare(causal, task, streaming=kind == "stream", **given, **NO_HOLD_OUT)
    assert [causal.decode(each["input_ids"]).startswith("!") for each in data.train] == [False, True]
    assert unread(data) == {"train": []}


@pytest.mark.parametrize("name", ["tokenize", "tools", "add_generation_prompt"])
def test_template_options_that_are_not_the_rows_to_give(name, causal, prepare, jsonl):
    rows = [{"messages": TALK, "chat_template_kwargs": {name: True}}]
    with pytest.raises(UsageError, match=name):
        prepare(causal, "causal-lm", train_file=jsonl(rows), **NO_HOLD_OUT)


def test_documents_of_packed_rows_are_samples(causal, prepare, jsonl):
    rows = [
        {"input_ids": [7, 8, 9, 10, 11], "labels": [7, -100, 9, 10, 11], "seq_lengths": [2, 3]},
        {"input_ids": [7, 8, 9, 10], "labels": [7, 8, 9, 10], "seq_lengths": [2, 2]},
    ]
    data = prepare(causal, "causal-lm", train_file=jsonl(rows), **NO_HOLD_OUT)
    # Nothing of the first document is learned.
    assert data.train["input_ids"] == [[9, 10, 11], [7, 8], [9, 10]]
    assert data.train["labels"] == data.train["input_ids"]
    counts = data.counts["train"]
    assert (counts.rows, counts.encoded, counts.left["no_loss"][0]) == (2, 4, 1)


def test_the_mend_for_answers_to_avoid(causal, prepare, jsonl):
    """Half of KTO's rows: refused, and with the share that the error names the others are learned."""
    rows = [{"prompt": "ab", "completion": f"c{i}", "label": i % 2 == 0} for i in range(10)]
    file = jsonl(rows)
    with pytest.raises(UsageError) as error:
        prepare(causal, "causal-lm", train_file=file, **NO_HOLD_OUT)
    flag, share = error.value.fix.split()[-2:]
    assert flag == "--max-bad-rows"
    data = prepare(causal, "causal-lm", train_file=file, max_bad_rows=float(share), **NO_HOLD_OUT)
    learned = [causal.decode(each["input_ids"]).replace(" ", "") for each in data.train]
    assert learned == [f"abc{i}</s>" for i in range(0, 10, 2)]


@pytest.mark.parametrize("kind", ["rows", "stream"])
def test_images_of_a_table_are_refused_or_ignored(kind, causal, prepare, tmp_path):
    rows = [{"text": "ab", "images": ["a.png"] if i > 200 else []} for i in range(300)]
    given = {**saved(rows, tmp_path / "saved"), **NO_HOLD_OUT, "streaming": kind == "stream"}
    with pytest.raises(UsageError, match="images"):
        list(prepare(causal, "causal-lm", **given).train)
    data = prepare(causal, "causal-lm", **given, ignore_columns=["images"])
    assert sum(len(row["input_ids"]) for row in data.train) == 300 * 3
    assert unread(data) == {"train": ["images"]}


@pytest.mark.parametrize("streaming", [False, True])
def test_ignored_columns_that_are_not_there_are_named(streaming, causal, prepare, jsonl):
    given = {"train_file": jsonl([{"text": "ab", "images": []}] * 3), "streaming": streaming, **NO_HOLD_OUT}
    for ignored, named in ((["images"], False), (["images", "imagse", "more.jsonl"], True)):
        notices = prepare(causal, "causal-lm", **given, ignore_columns=ignored).notices
        assert any("imagse, more.jsonl;" in each for each in notices) == named


@pytest.mark.parametrize("named", ["train.jsonl", "other.jsonl"])
def test_the_same_file_for_training_and_validation_is_said(named, causal, prepare, jsonl):
    files = {name: jsonl([{"text": "ab"}], name) for name in ("train.jsonl", "other.jsonl")}
    data = prepare(causal, "causal-lm", train_file=files["train.jsonl"], validation_file=files[named])
    said = [notice for notice in data.notices if str(files["train.jsonl"]) in notice]
    assert len(said) == (named == "train.jsonl")
