"""Several files for one split: patterns, formats, columns, token files, and a stream's place in them."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from dsrun.errors import UsageError
from dsrun.recipe.preflight.splits import expanded
from dsrun.recipe.resolve import resolve


def pair(name):
    return {"source": name, "target": name}


def sources(tokenizer, rows):
    return [tokenizer.decode(row["input_ids"]).replace(" ", "").removesuffix("</s>") for row in rows]


def test_patterns_expanded_in_natural_order(tmp_path):
    for name in ("part-10.jsonl", "part-2.jsonl", "other.jsonl"):
        (tmp_path / name).write_text("{}")
    found = expanded("--train-file", [str(tmp_path / "other.jsonl"), str(tmp_path / "part-*.jsonl")])
    assert [path.name for path in found] == ["other.jsonl", "part-2.jsonl", "part-10.jsonl"]


def test_file_with_brackets_in_its_name_is_no_pattern(tmp_path):
    (tmp_path / "a[1].jsonl").write_text("{}")
    assert expanded("--train-file", [str(tmp_path / "a[1].jsonl")]) == [tmp_path / "a[1].jsonl"]


def test_pattern_without_a_match_and_file_named_twice_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(UsageError, match=r"--test-file .*b\*\.jsonl matches no file"):
        expanded("--test-file", [str(tmp_path / "b*.jsonl")])
    with pytest.raises(UsageError, match=r"--test-file names .*a\.jsonl twice"):
        expanded("--test-file", [str(tmp_path / "a.jsonl"), str(tmp_path / "*.jsonl")])


def test_several_files_on_the_command_line_and_in_a_run_file(tmp_path):
    recipe = resolve(["--model", "m", "--train-file", "a.jsonl", "b.csv", "--test-file", "c.csv"], tmp_path)
    assert (recipe.spec.train_file, recipe.spec.test_file) == (["a.jsonl", "b.csv"], ["c.csv"])
    (tmp_path / "run.yaml").write_text("train: {model: m, train_file: [a.jsonl, b.csv], test_file: c.csv}")
    recipe = resolve(["--config", str(tmp_path / "run.yaml")], tmp_path)
    assert (recipe.spec.train_file, recipe.spec.test_file) == (["a.jsonl", "b.csv"], ["c.csv"])


def test_files_of_several_formats_read_in_order(seq2seq, prepare, jsonl, tmp_path):
    table = tmp_path / "b.csv"
    table.write_text("source,target,more\nc,c,x\n")
    data = prepare(seq2seq, "seq2seq", train_file=[jsonl([pair("a"), pair("b")]), table])
    assert sources(seq2seq, data.train) == ["a", "b", "c"]
    assert data.origin.startswith("train.jsonl and 1 more: 3 train")


def test_file_without_the_columns_of_the_first_named(seq2seq, prepare, jsonl):
    files = [jsonl([pair("a")], "a.jsonl"), jsonl([{"source": "b", "answer": "b"}], "b.jsonl")]
    with pytest.raises(UsageError, match=r"b\.jsonl has no column 'target', which .*a\.jsonl has"):
        prepare(seq2seq, "seq2seq", train_file=files)


def test_text_and_tables_do_not_mix(causal, prepare, jsonl, tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UsageError, match="json and txt files cannot be mixed in one split"):
        prepare(causal, "causal-lm", train_file=[jsonl([{"text": "a"}]), tmp_path / "a.txt"])


@pytest.mark.parametrize("taken", range(1, 5))
def test_stream_goes_on_in_the_file_where_it_stopped(taken, seq2seq, prepare, jsonl):
    files = [jsonl([pair("a"), pair("b")], "a.jsonl"), jsonl([pair("c"), pair("d"), pair("e")], "b.jsonl")]
    stream = prepare(seq2seq, "seq2seq", train_file=files, streaming=True).train
    reader = stream.start()
    first = list(itertools.islice(reader, taken))
    state = json.loads(json.dumps(reader.state()))
    assert sources(seq2seq, [*first, *stream.start(state)]) == list("abcde")


@pytest.fixture
def token_files(tmp_path):
    """Three files of 10, 3 and 8 ids, of two widths."""
    paths = [tmp_path / f"t{number}.bin" for number in range(3)]
    starts = (0, 10, 13, 21)
    for path, start, stop, dtype in zip(paths, starts, starts[1:], ("<u2", "<u2", "<i4"), strict=False):
        np.arange(start, stop, dtype=dtype).tofile(path)
    return paths


def test_token_files_read_one_after_another(token_files, causal, prepare):
    data = prepare(causal, "causal-lm", train_file=token_files, max_length=4, validation_split_percentage=0)
    blocks = [data.train[k]["input_ids"].tolist() for k in range(len(data.train))]
    assert blocks == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11, 12], [13, 14, 15, 16], [17, 18, 19, 20]]
    assert data.train.lengths().tolist() == [len(block) for block in blocks]
    assert data.train.tokens == 21


@pytest.mark.parametrize("limit", range(1, 7))
def test_limited_and_held_out_blocks_of_several_token_files(limit, token_files, causal, prepare):
    whole = prepare(causal, "causal-lm", train_file=token_files, max_length=4, validation_split_percentage=0).train
    expected = [whole[k]["input_ids"].tolist() for k in range(len(whole))]
    options = {"train_file": token_files, "max_length": 4, "splits": ("train", "validation")}
    data = prepare(causal, "causal-lm", **options, validation_split_percentage=round(100 * limit / 7))
    held = [data.validation[k]["input_ids"].tolist() for k in range(len(data.validation))]
    rest = [data.train[k]["input_ids"].tolist() for k in range(len(data.train))]
    assert held + rest == expected
    options |= {"validation_split_percentage": 0, "splits": ("train",), "max_train_samples": limit}
    first = prepare(causal, "causal-lm", **options).train
    assert [first[k]["input_ids"].tolist() for k in range(len(first))] == expected[:limit]
