"""Which files a flag names: folders, and what is in them."""

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.preflight.splits import expanded, format_of


@pytest.fixture
def folder(tmp_path):
    """Makes a folder of files of these names."""

    def make(*names):
        for name in names:
            path = tmp_path / "shards" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        return tmp_path / "shards"

    return make


def refused(flag, folder):
    with pytest.raises(UsageError) as error:
        expanded(flag, [str(folder)])
    return error.value


def test_folder_stands_for_its_files_in_order(folder):
    found = expanded("--train-file", [str(folder("part-10.jsonl", "part-2.jsonl", "more/part-1.jsonl"))])
    assert [path.name for path in found] == ["part-1.jsonl", "part-2.jsonl", "part-10.jsonl"]


@pytest.mark.parametrize("beside", ["a.md", "README.txt", "LICENSE.txt", ".a.csv", ".git/a.csv", "dataset_info.json"])
def test_other_files_are_passed_over(folder, beside):
    assert [path.name for path in expanded("--train-file", [str(folder("a.jsonl", beside))])] == ["a.jsonl"]


def test_json_files_of_both_suffixes_are_one_kind(folder):
    assert len(expanded("--train-file", [str(folder("a.jsonl", "b.json", "c.jsonl.gz"))])) == 3


def test_only_tables_may_be_mixed(folder):
    """The error comes with the rest of the checks before torch loads."""
    path = folder("a.jsonl", "b.csv", "c.tsv.gz")
    assert format_of(expanded("--train-file", [str(path)])) == "table"
    assert format_of([path / "a.jsonl"]) == "json"
    with pytest.raises(UsageError, match="cannot be mixed"):
        format_of(expanded("--train-file", [str(folder("words.txt"))]))


def test_folder_without_data_refused(folder):
    assert "known: .json" in refused("--train-file", folder("notes.md")).fix


def test_saved_dataset_belongs_to_another_flag(folder):
    path = folder("state.json", "dataset_info.json", "data.arrow")
    assert refused("--train-file", path).fix == f"--dataset {path}"


def test_files_of_other_splits_are_not_trained_on(folder):
    path = folder("train.jsonl", "valid.jsonl")
    error = refused("--train-file", path)
    assert "valid.jsonl" in error.message
    assert error.fix == f"--dataset {path}"


def test_files_of_this_split_are_named_where_the_rest_is_not(folder):
    path = folder("a.jsonl", "b.jsonl", "test.jsonl")
    assert refused("--train-file", path).fix == f"--train-file {path}/a.jsonl {path}/b.jsonl"


def test_folder_of_one_split_may_be_used_for_another(folder):
    assert len(expanded("--validation-file", [str(folder("test-1.jsonl", "test-2.jsonl"))])) == 2
