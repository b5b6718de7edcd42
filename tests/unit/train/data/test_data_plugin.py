"""Rows that a plugin makes of those of the data, before their columns are looked at; the cache knows them apart."""

from __future__ import annotations

import json

import pytest
from datasets import Dataset, IterableDataset

from dsrun.errors import UsageError
from dsrun.plugin import Plugin
from dsrun.recipe.preflight.plugin_file import PluginFile
from dsrun.train.base.plan import LoadedPlugin
from dsrun.train.data.reading.sources import PluginSource, TableSource
from dsrun.train.data.stream import RowStream

ROWS = [{"number": i, "words": [f"{i}", f"{i}{i}"]} for i in range(250)]
PAIRS = [{"source": f"{i}", "target": word} for i in range(250) if i % 3 for word in (f"{i}", f"{i}{i}")]


class Words(Plugin):
    """A pair for each word; every third row is left out."""

    api_version = 1

    def __init__(self):
        self.seen = []

    def rows(self, row, split):
        self.seen.append(split)
        if row["number"] % 3 == 0:
            return None
        return [{"source": str(row["number"]), "target": word} for word in row["words"]]


def loaded(plugin, sha256="one"):
    return LoadedPlugin(plugin, PluginFile("module:Words", "module", "Words", (), sha256))


def listed(rows):
    return [(list(row["input_ids"]), list(row["labels"])) for row in rows]


@pytest.fixture
def expected(seq2seq, prepare, jsonl):
    """What the pairs give without a plugin."""
    return listed(prepare(seq2seq, "seq2seq", train_file=jsonl(PAIRS, "pairs.jsonl")).train)


def test_plugin_rows_of_files(seq2seq, prepare, jsonl, expected):
    data = prepare(seq2seq, "seq2seq", train_file=jsonl(ROWS), plugin=loaded(Words()))
    assert listed(data.train) == expected
    assert "332 train" in data.origin
    few = prepare(seq2seq, "seq2seq", train_file=jsonl(ROWS), plugin=loaded(Words()), max_train_samples=3)
    assert listed(few.train) == expected[:3]


def test_plugin_rows_of_saved_dataset(seq2seq, prepare, tmp_path, expected):
    Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    data = prepare(seq2seq, "seq2seq", dataset=tmp_path / "saved", plugin=loaded(Words()))
    assert listed(data.train) == expected


def test_plugin_knows_the_split(seq2seq, prepare, jsonl):
    plugin = Words()
    files = {"train_file": jsonl(ROWS), "validation_file": jsonl(ROWS[:9], "dev.jsonl")}
    prepare(seq2seq, "seq2seq", splits=("train", "validation"), plugin=loaded(plugin), **files)
    assert plugin.seen[-9:] == ["validation"] * 9
    assert "train" in plugin.seen


def test_changed_plugin_is_not_served_old_rows(seq2seq, prepare, jsonl):
    """The same source comes from the cache, another one or another version does not, and the fingerprint follows."""
    file = jsonl(ROWS)

    def ran(sha256, version=""):
        plugin = Words()
        plugin.version = version
        return prepare(seq2seq, "seq2seq", train_file=file, plugin=loaded(plugin, sha256)), bool(plugin.seen)

    first, again, other, newer = ran("one"), ran("one"), ran("two"), ran("one", "2")
    assert [made for _, made in (first, again, other, newer)] == [True, False, True, True]
    # The same rows, so a resumed run goes on.
    assert first[0].train_fingerprint == other[0].train_fingerprint


@pytest.mark.parametrize("kind", ["file", "table", "hub"])
def test_streamed_plugin_rows_resume_where_they_stopped(seq2seq, prepare, jsonl, expected, kind):
    plugin = loaded(Words())
    stream = prepare(seq2seq, "seq2seq", train_file=jsonl(ROWS), plugin=plugin, streaming=True).train
    assert isinstance(stream, RowStream)
    if kind != "file":
        table = Dataset.from_list(ROWS)
        table = table.to_iterable_dataset(num_shards=4) if kind == "hub" else table
        assert isinstance(table, IterableDataset if kind == "hub" else Dataset)
        stream = RowStream(PluginSource(TableSource(table, "rows"), plugin, "train"), stream.layout, stream.encoder)
    reader, states, rows = stream.start(), [], []
    for row in reader:
        rows.append(row)
        states.append(json.loads(json.dumps(reader.state())))
    assert listed(rows) == expected
    for at in (1, 2, 67, 68, 131, 132, 133, 331, 332):
        assert listed(stream.start(states[at - 1])) == expected[at:], f"from row {at}"


def test_stream_fingerprint_follows_the_plugin(seq2seq, prepare, jsonl):
    file = jsonl(ROWS)
    found = [
        prepare(seq2seq, "seq2seq", train_file=file, plugin=loaded(Words(), name), streaming=True).train_fingerprint
        for name in ("one", "one", "two")
    ]
    assert found[0] == found[1] != found[2]


def test_plugin_that_leaves_no_row_is_refused(seq2seq, prepare, jsonl):
    with pytest.raises(UsageError, match=r"rows\(\) of --plugin module:Words leaves no row of .*train\.jsonl"):
        prepare(seq2seq, "seq2seq", train_file=jsonl(ROWS[:1]), plugin=loaded(Words()))


def test_plugin_rows_of_token_file_are_refused(causal, prepare, tmp_path):
    (tmp_path / "tokens.bin").write_bytes(bytes(400))
    with pytest.raises(UsageError, match=r"tokens\.bin is a token file, and rows\(\) of --plugin module:Words"):
        prepare(causal, "causal-lm", train_file=tmp_path / "tokens.bin", bin_dtype="uint16", plugin=loaded(Words()))


def test_plugin_changes_the_batch(causal, prepare, jsonl):
    class Weighted(Plugin):
        api_version = 1

        def collate(self, batch, rows):
            return {**batch, "labels": batch["labels"].clamp(max=5)}

    data = prepare(causal, "causal-lm", train_file=jsonl([{"prompt": "ab", "completion": "cd"}] * 30),
                   plugin=loaded(Weighted()), validation_split_percentage=0)  # fmt: skip
    batch = data.collator([data.train[0], data.train[1]])
    assert batch["labels"].max() == 5
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
