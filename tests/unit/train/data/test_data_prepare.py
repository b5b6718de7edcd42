"""The whole way from files to rows."""

import json
import os

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from dsrun.errors import UsageError
from dsrun.train.data.token_files import TokenBin

PAIR = {"source": "one", "target": "unu"}
NO_HOLD_OUT = {"validation_split_percentage": 0}


def text(tokenizer, ids):
    return "".join(tokenizer.convert_ids_to_tokens([i for i in ids if i != -100]))


def all_tokens(blocks):
    return [int(token) for row in blocks for token in row["input_ids"]]


def test_prepared_seq2seq_rows(seq2seq, prepare, jsonl):
    data = prepare(
        seq2seq,
        "seq2seq",
        train_file=jsonl([PAIR]),
        test_file=jsonl([PAIR], "test.jsonl"),
        splits=["train", "validation", "test"],
        source_prefix="say: ",
    )
    assert text(seq2seq, data.train[0]["input_ids"]) == "say: one</s>"
    assert text(seq2seq, data.train[0]["labels"]) == "unu</s>"
    assert set(data.train.column_names) == {"input_ids", "labels"}
    assert data.test[0]["source_text"] == "say: one"
    assert data.test[0]["target_text"] == "unu"
    assert data.validation is None
    assert data.origin == "train.jsonl: 1 train, 1 test"


def test_missing_required_split_rejected(seq2seq, prepare, jsonl):
    with pytest.raises(UsageError, match=r"no validation data.*--validation-file FILE"):
        prepare(
            seq2seq,
            "seq2seq",
            train_file=jsonl([PAIR]),
            splits=["train", "validation"],
            required=["validation"],
        )
    with pytest.raises(UsageError, match=r"no test data.*--test-file FILE"):
        prepare(seq2seq, "seq2seq", train_file=jsonl([PAIR]), splits=["train", "test"])


def test_tokenising_processes_count_together(seq2seq, prepare, jsonl):
    rows = [{"source": "a" * (i % 7 + 1), "target": "b"} for i in range(2500)]
    seen = []
    data = prepare(
        seq2seq,
        "seq2seq",
        train_file=jsonl(rows),
        max_length=5,
        num_proc=2,
        progress=lambda *a: seen.append(a),
    )
    assert len(data.train) == 2500
    assert [len(row["input_ids"]) for row in data.train.select(range(7))] == [2, 3, 4, 5, 5, 5, 5]
    assert data.counts["train"].cut == sum(i % 7 + 1 > 4 for i in range(2500))
    assert seen[-1] == ("train", 2500, 2500)


def test_os_environ_kept_by_tokenising_processes(causal, prepare, jsonl, monkeypatch):
    """`datasets` replaces os.environ by a copy when it starts processes."""
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    before = os.environ
    prepare(causal, "causal-lm", train_file=jsonl([{"text": "a"}] * 40), num_proc=2, **NO_HOLD_OUT)
    assert os.environ is before
    assert "TOKENIZERS_PARALLELISM" not in os.environ


def test_error_in_tokenising_process_arrives_whole(causal, prepare, jsonl):
    rows = [{"messages": [{"role": "assistant", "content": "x"}]}] * 20
    causal.chat_template = "{{ raise_exception('never') }}"
    with pytest.raises(UsageError, match=r"train.jsonl, line \d+: the chat template refuses"):
        prepare(causal, "causal-lm", train_file=jsonl(rows), num_proc=2, **NO_HOLD_OUT)


def test_incomplete_rows_dropped_and_counted(seq2seq, prepare, jsonl):
    rows = [PAIR, {"source": "x", "target": None}, {"source": "", "target": "y"}, {"source": "x", "target": ""}, PAIR]
    data = prepare(seq2seq, "seq2seq", train_file=jsonl(rows), max_bad_rows=0)
    assert len(data.train) == 2
    left = {why: (count, first.rpartition(" ")[2]) for why, (count, _, first) in data.counts["train"].left.items()}
    assert left == {"no_target": (2, "2"), "no_source": (1, "3")}


def test_text_file_is_one_document(causal, prepare, tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\r\nthree")
    data = prepare(causal, "causal-lm", train_file=tmp_path / "a.txt", block_size=4, **NO_HOLD_OUT)
    assert isinstance(data.train, TokenBin)
    assert text(causal, all_tokens(data.train)) == "one\n\ntwo\nthree</s>"
    assert [len(row["input_ids"]) for row in data.train] == [4, 4, 4, 3]
    assert "train: 15 tokens in 4 blocks of 4" in data.notices


def test_text_lines_are_documents_without_linebreaks(causal, prepare, tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    data = prepare(causal, "causal-lm", train_file=tmp_path / "a.txt", keep_linebreaks=False, **NO_HOLD_OUT)
    assert text(causal, all_tokens(data.train)) == "one</s>two</s>"


def test_documents_have_bos_and_eos_of_tokenizer(merging, prepare, jsonl):
    data = prepare(merging, "causal-lm", train_file=jsonl([{"text": "ab"}, {"text": ""}, {"text": "b"}]), **NO_HOLD_OUT)
    assert text(merging, all_tokens(data.train)) == "<s>ab</s><s>b</s>"


def test_held_out_blocks_disjoint_and_whole(causal, prepare, tmp_path):
    words = "".join(f"{i:03d}\n" for i in range(300))
    (tmp_path / "a.txt").write_text(words)
    options = {"train_file": tmp_path / "a.txt", "block_size": 16, "validation_split_percentage": 10}
    data = prepare(causal, "causal-lm", splits=["train", "validation"], **options)
    assert text(causal, all_tokens(data.validation) + all_tokens(data.train)) == words + "</s>"
    assert len(data.validation) == round(0.1 * (len(data.validation) + len(data.train)))
    assert any("held out" in notice for notice in data.notices)
    only_train = prepare(causal, "causal-lm", splits=["train"], **options)
    assert all_tokens(only_train.train) == all_tokens(data.train)
    assert only_train.validation is None


def test_held_out_rows_disjoint_and_deterministic(causal, prepare, jsonl):
    """Held-out rows are disjoint, whole, and the same again."""
    rows = [{"prompt": f"{i}=", "completion": str(i)} for i in range(100)]
    file = jsonl(rows)
    data = prepare(causal, "causal-lm", train_file=file, splits=["train", "validation"])
    held = set(data.validation["target_text"])
    kept = {text(causal, row["labels"]).removesuffix("</s>") for row in data.train}
    assert len(held) == 5
    assert held | kept == {str(i) for i in range(100)}
    assert not held & kept
    again = prepare(causal, "causal-lm", train_file=file, splits=["validation"], overwrite_cache=True)
    assert set(again.validation["target_text"]) == held


def test_hold_out_of_single_row_rejected(causal, prepare, jsonl):
    with pytest.raises(UsageError, match="none can be held out"):
        prepare(causal, "causal-lm", train_file=jsonl([{"prompt": "a", "completion": "b"}]))


def test_pretokenised_rows(causal, seq2seq, prepare, jsonl):
    file = jsonl([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
    data = prepare(causal, "causal-lm", train_file=file, max_length=2, **NO_HOLD_OUT)
    assert data.train[0] == {"input_ids": [5, 6], "labels": [5, 6]}
    assert data.counts["train"].cut == 1
    file = jsonl([{"input_ids": [5, 6, 7], "labels": [8]}], "pairs.jsonl")
    assert prepare(seq2seq, "seq2seq", train_file=file).train[0] == {"input_ids": [5, 6, 7], "labels": [8]}
    with pytest.raises(UsageError, match="line 1: 3 input_ids but 1 labels"):
        prepare(causal, "causal-lm", train_file=file, **NO_HOLD_OUT)


def test_token_ids_outside_embedding_rejected(causal, seq2seq, prepare, jsonl, tmp_path):
    file = jsonl([{"input_ids": [5, 600]}])
    with pytest.raises(UsageError, match="token id 600 is outside the model's embedding of 600 rows"):
        prepare(causal, "causal-lm", train_file=file, vocab_size=600, **NO_HOLD_OUT)
    with pytest.raises(UsageError, match=r"train data .*outside the model's embedding of 20 rows"):
        prepare(seq2seq, "seq2seq", train_file=jsonl([PAIR], "b.jsonl"), vocab_size=20)
    with pytest.raises(UsageError, match="negative id -5"):
        prepare(causal, "causal-lm", train_file=jsonl([{"input_ids": [5, -5]}], "c.jsonl"), **NO_HOLD_OUT)
    (tmp_path / "a.txt").write_text("zzz")
    with pytest.raises(UsageError, match="outside the model's embedding of 50 rows"):
        prepare(causal, "causal-lm", train_file=tmp_path / "a.txt", vocab_size=50, **NO_HOLD_OUT)


def test_token_files(causal, seq2seq, prepare, tmp_path):
    np.arange(100, dtype="<u2").tofile(tmp_path / "train.bin")
    np.arange(7, dtype="<u2").tofile(tmp_path / "val.bin")
    data = prepare(causal, "causal-lm", dataset=tmp_path, block_size=30, splits=["train", "validation"])
    assert all_tokens(data.train) == list(range(100))
    assert [len(row["input_ids"]) for row in data.train] == [30, 30, 30, 10]
    assert all_tokens(data.validation) == list(range(7))
    with pytest.raises(
        UsageError,
        match=r"token id 99 is outside.*read as uint16; --bin-dtype says",
    ):
        prepare(causal, "causal-lm", dataset=tmp_path, block_size=30, vocab_size=99)
    with pytest.raises(UsageError, match="token files are for causal language models"):
        prepare(seq2seq, "seq2seq", train_file=tmp_path / "train.bin")
    half = prepare(
        causal,
        "causal-lm",
        train_file=tmp_path / "train.bin",
        block_size=10,
        splits=["train", "validation"],
        validation_split_percentage=50,
    )
    assert all_tokens(half.validation) + all_tokens(half.train) == list(range(100))


def test_missing_pad_token(causal, prepare, jsonl):
    data = prepare(causal, "causal-lm", train_file=jsonl([{"prompt": "a", "completion": "b"}]), **NO_HOLD_OUT)
    assert causal.pad_token == "</s>"
    assert any("has no padding token" in notice for notice in data.notices)
    assert data.train[0]["labels"][-1] == causal.eos_token_id
    causal.pad_token = None
    with pytest.raises(UsageError, match="no padding token"):
        prepare(causal, "seq2seq", train_file=jsonl([PAIR], "b.jsonl"))


def test_t5_source_prefix_notice(seq2seq, prepare, jsonl):
    def said(**options):
        data = prepare(seq2seq, "seq2seq", train_file=jsonl([PAIR]), **{"model_type": "t5", **options})
        return any("prefix" in notice for notice in data.notices)

    assert said()
    assert not said(source_prefix="")
    assert not said(from_scratch=True)
    assert not said(model_type="mt5")


def test_dataset_folder_and_saved_dataset_splits(seq2seq, prepare, jsonl, tmp_path):
    for name in ("data/train-2.jsonl", "data/train-10.jsonl", "data/dev.jsonl", "data/test/part.jsonl"):
        jsonl([{"source": name[-8:-6], "target": "x"}], name)
    (tmp_path / "data" / "README.md").write_text("words")
    data = prepare(seq2seq, "seq2seq", dataset=tmp_path / "data", splits=["train", "validation", "test"])
    assert [text(seq2seq, row["input_ids"]) for row in data.train] == ["-2</s>", "10</s>"]
    assert (len(data.validation), len(data.test)) == (1, 1)
    saved = DatasetDict({"train": Dataset.from_list([PAIR] * 3), "dev": Dataset.from_list([PAIR])})
    saved.save_to_disk(tmp_path / "saved")
    data = prepare(seq2seq, "seq2seq", dataset=tmp_path / "saved", splits=["train", "validation"])
    assert (len(data.train), len(data.validation)) == (3, 1)
    assert data.validation[0]["target_text"] == "unu"


def test_dataset_and_file_for_one_split_rejected(seq2seq, prepare, jsonl, tmp_path):
    jsonl([PAIR], "data/train.jsonl")
    with pytest.raises(UsageError, match="has training data and --train-file"):
        prepare(seq2seq, "seq2seq", dataset=tmp_path / "data", train_file=jsonl([PAIR]))


def test_data_file_formats_give_same_rows(seq2seq, prepare, jsonl, tmp_path):
    rows = [{"source": "007", "target": "NA"}, {"source": 'a,"b"', "target": "x\ny"}]
    table = 'source,target\n007,NA\n"a,""b""","x\ny"\n'
    (tmp_path / "a.csv").write_text(table)
    (tmp_path / "list.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "wrapped.json").write_text(json.dumps({"version": 1, "data": rows}))
    Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    expected = [dict(row) for row in prepare(seq2seq, "seq2seq", train_file=jsonl(rows)).train]
    for name in ("a.csv", "list.json", "wrapped.json", "a.parquet"):
        data = prepare(seq2seq, "seq2seq", train_file=tmp_path / name)
        assert [dict(row) for row in data.train] == expected, name


def test_json_list_of_strings(causal, prepare, tmp_path):
    (tmp_path / "a.json").write_text('["ab", "cd"]')
    data = prepare(causal, "causal-lm", train_file=tmp_path / "a.json", **NO_HOLD_OUT)
    assert text(causal, all_tokens(data.train)) == "ab</s>cd</s>"


BROKEN = {
    "late.jsonl": ('{"source": "a", "target": "b"}\n' * 3 + "{oops\n", r"late.jsonl, line 4: not JSON"),
    "deep.jsonl": (
        '{"source": "a", "target": "b"}\n{"source": ' + "[" * 900 + "]" * 900 + ', "target": "b"}\n',
        r"line 2: not JSON \(nested too deeply\)",
    ),
    "array.jsonl": ('{"source": "a", "target": "b"}\n[1]\n', r"line 2: a row must be an object, not a list"),
    "numbers.json": ("[1, 2]", r"row 1: a row must be an object"),
    "short.csv": ("source,target\na,b\nc\n", r"line 3: 1 fields where the header has 2"),
    "twice.csv": ("source,target,target\na,b,c\n", r"line 1: two columns are named 'target'"),
    "quote.csv": ('source,target\n"a,b\n', r"line 2: broken CSV"),
    "plain.txt": ("some words", r"plain.txt: plain text has no targets"),
    "empty.json": ("[]", r"is empty"),
    "cut.parquet": ("PAR1 nonsense PAR1", r"not a valid Parquet file"),
    "nested.jsonl": (
        '{"source": "a", "target": "b"}\n{"source": {"x": 1}, "target": "b"}\n',
        r"line 2: column 'source'",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_data_file_error_names_line(seq2seq, prepare, tmp_path, name):
    content, expected = BROKEN[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=expected) as error:
        prepare(seq2seq, "seq2seq", train_file=tmp_path / name)
    assert "\n" not in str(error.value)


def test_pad_to_max_length(seq2seq, prepare, jsonl):
    data = prepare(seq2seq, "seq2seq", train_file=jsonl([PAIR]), pad_to_max_length=True, max_length=9)
    batch = data.collator([data.train[0]])
    assert batch["input_ids"].shape == (1, 9)
    assert batch["labels"].shape == (1, 128)
    assert data.collator.max_target_length == 128
