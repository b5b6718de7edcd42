"""What the first rows of local files tell of a run."""

import json
import shlex
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.preflight.data import tasks_of
from dsrun.recipe.preflight.files import check_inputs
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.resolve import resolve
from dsrun.recipe.rows.readers import first_rows

PAIR = {"source": "one", "target": "unu"}
ANSWERS = {"prompt": "p", "chosen": "a", "rejected": "b"}


def chat(*messages):
    return {"messages": list(messages)}


def said(role="user", content="hi", **more):
    return {"role": role, "content": content, **more}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes rows as JSON lines, or a text, into the current folder; the name of the file."""
    monkeypatch.chdir(tmp_path)

    def make(name, *rows):
        text = rows[0] if rows and isinstance(rows[0], str) else "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name).write_text(text)
        return name

    return make


def check(*args, model="demo-t5"):
    check_inputs(resolve(["--model", model, *args], Path.cwd()))


def refused(*args, model="demo-t5"):
    with pytest.raises(UsageError) as error:
        check(*args, model=model)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 350
    return error.value


def followed(fix, *args, model="demo-t5"):
    """Do what a fix says in backquotes, and check again."""
    flags = shlex.split(fix.partition("`")[2].partition("`")[0])
    check(*args, *flags, model=model)


@pytest.mark.parametrize("model", ["demo-t5", "demo-llama"])
@pytest.mark.parametrize(
    ("row", "flags"),
    [
        ({"english": "one", "romanian": "unu"}, "--text-column english --summary-column romanian"),
        ({"id": 7, "english": "one", "romanian": "unu"}, "--text-column english --summary-column romanian"),
        ({"tgt": "unu", "english": "one"}, "--text-column english --summary-column tgt"),
        ({"my text": "one", "b": "unu"}, "--text-column 'my text' --summary-column b"),
    ],
)
def test_two_columns_of_text_are_named(write, model, row, flags):
    args = ("--train-file", write("a.jsonl", row))
    error = refused(*args, model=model)
    assert "columns found: " in error.message
    assert error.fix == f"add `{flags}`"
    followed(error.fix, *args, model=model)


def test_ids_in_a_csv_file_are_no_text(write):
    assert "`--text-column english" in refused("--train-file", write("a.csv", "id,english,romanian\n1,one,unu\n")).fix


@pytest.mark.parametrize(
    ("model", "row", "flags", "fix"),
    [
        ("demo-t5", {"a": "x", "b": "y", "c": "z"}, (), "add `--text-column SOURCE --summary-column TARGET`"),
        ("demo-llama", {"a": "x", "b": "y", "c": "z"}, (), "add `--text-column TEXT`"),
        ("demo-llama", {"a": "x", "b": 1}, (), "add `--text-column a`"),
        ("demo-t5", {"a": "x", "b": "y"}, ("--text-column", "a"), "add `--summary-column b`"),
        ("demo-t5", {"a": "x", "b": "y"}, ("--summary-column", "b"), "add `--text-column a`"),
    ],
)
def test_columns_are_guessed_where_only_one_choice_is_left(write, model, row, flags, fix):
    assert refused("--train-file", write("a.jsonl", row), *flags, model=model).fix == fix


def test_single_column_is_no_pair(write):
    assert "--text-column" not in refused("--train-file", write("a.jsonl", {"text": "x"})).fix


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        (
            "lists.jsonl",
            '{"source": ["a", "b"], "target": ["c", "d"]}\n' * 2,
            "column 'source' contains lists of texts",
        ),
        ("arrays.jsonl", '["a", "c"]\n\n["b", "d"]\n', "line 1: a row must be an object, not a list"),
        ("array.json", '[["a", "c"],\n ["b", "d"]]', "row 1: a row must be an object, not a list"),
    ],
)
def test_lists_are_no_rows(write, name, content, wrong):
    error = refused("--train-file", write(name, content))
    assert wrong in error.message
    assert "write " in str(error)


@pytest.mark.parametrize("name", ["columns.json", "columns.jsonl"])
def test_table_by_columns_is_read(write, name):
    check("--train-file", write(name, '{"source": ["a", "b"], "target": ["c", "d"]}'))
    rows = [{"source": "a", "target": "c"}, {"source": "b", "target": "d"}]
    assert [row for _, row in first_rows(Path(name))] == rows
    unequal = write(name, '{"source": ["a"],\n "target": ["c", "d"]}')
    assert "contains lists of texts" in refused("--train-file", unequal).message


@pytest.mark.parametrize("content", ['"one text"\n"another"\n', '["one text", "another"]'], ids=["lines", "list"])
def test_texts_are_rows(write, content):
    check("--train-file", write("texts.json", content), model="demo-llama")


def test_preferences_need_their_task(write):
    args = ("--train-file", write("a.jsonl", ANSWERS))
    error = refused(*args, model="demo-llama")
    assert error.fix == "add `--task dpo`"
    followed(error.fix, *args, model="demo-llama")
    assert "causal LM" in refused(*args).fix


@pytest.mark.parametrize(
    ("message", "named", "fix"),
    [
        ({"rol": "user", "content": "hi"}, "rol, content", "rename 'rol' to 'role'"),
        ({"role": "user", "text": "hi"}, "role, text", "rename 'text' to 'content'"),
        (said("student"), "'student'", "rename it: roles are system, user, assistant and tool"),
    ],
)
def test_messages_are_read(write, message, named, fix):
    file = write("a.jsonl", chat(message, said("assistant")))
    error = refused("--train-file", file, "--chat-template", "chatml", model="demo-llama")
    assert error.message.startswith("a.jsonl, line 1: ")
    assert named in error.message
    assert error.message.endswith(f"({fix})")


def test_roles_in_any_case_are_known(write):
    file = write("a.jsonl", chat(said("User"), said("ASSISTANT")))
    check("--train-file", file, "--chat-template", "chatml", model="demo-llama")


BAD_ROWS = {
    "columns": ['{"source": "a", "target": "b"}', '{"src": "a", "tgt": "b"}'],
    "languages": ['{"translation": {"en": "a", "ro": "b"}}', '{"translation": {"en": "a", "de": "b"}}'],
    "broken": ['{"source": "a", "target": "b"}', '{"source": '],
    "nested": ['{"source": "a", "target": "b"}', '{"source": ["a"], "target": "b"}'],
    "messages": ['{"messages": []}', '{"talk": []}'],
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_rows_that_cannot_be_used_found_before_anything_starts(kind, write):
    """With the share that is enough; what a limit may change is left to training."""
    args = ("--train-file", write("a.jsonl", "\n".join(BAD_ROWS[kind] * 4)))
    error = refused(*args, model="org/model")
    assert "a.jsonl, line 2" in error.message
    check(*args, "--max-bad-rows", error.fix.rpartition(" ")[2], model="org/model")
    check(*args, "--max-train-samples", "1", model="org/model")
    # The share is one of all files together.
    check(*args, write("b.jsonl", f"{BAD_ROWS[kind][0]}\n" * 500), model="org/model")


def test_rows_without_a_text_are_not_bad(write):
    file = write("a.jsonl", PAIR, {**PAIR, "source": None}, {**PAIR, "target": ""})
    check("--train-file", file, "--max-bad-rows", "0")


def test_head_of_a_long_file_is_judged_where_no_row_may_be_bad(write, monkeypatch):
    monkeypatch.setattr("dsrun.recipe.preflight.data.HEAD", 100)
    args = ("--train-file", write("a.jsonl", "\n".join([json.dumps(PAIR), "{", *[json.dumps(PAIR)] * 99])))
    check(*args)
    assert "line 2" in refused(*args, "--max-bad-rows", "0").message
    check(*args, "--max-bad-rows", "0", "--max-train-samples", "1")


def test_plain_text_has_no_targets(write):
    check("--train-file", write("a.txt", "words"), model="demo-llama")
    assert "targets" in refused("--train-file", "a.txt").message


def test_files_of_kinds_that_do_not_mix_refused(write):
    assert "cannot be mixed" in refused("--train-file", write("a.jsonl", PAIR), write("b.txt", "words")).message


def test_list_without_rows_is_empty(write):
    assert refused("--train-file", write("a.json", "[]")).message == "a.json is empty"


def test_columns_of_other_splits_are_those_of_the_training_data(write):
    args = ("--train-file", write("a.jsonl", PAIR), "--validation-file", write("b.jsonl", {"x": "one", "y": "unu"}))
    message = refused(*args).message
    assert message.startswith("b.jsonl lacks source and target, which a.jsonl has")
    check(*args[:2], "--validation-file", write("c.jsonl", {"src": "one", "tgt": "unu"}))


def test_files_of_a_split_have_the_same_columns(write):
    error = refused("--train-file", write("a.csv", "source,target\none,unu\n"), write("b.csv", "src,tgt\none,unu\n"))
    assert error.message.startswith("b.csv has no column 'source'")


def test_rows_of_a_split_that_is_not_wanted_are_not_read(write):
    args = ("--train-file", write("a.jsonl", PAIR), "--validation-file", write("b.jsonl", {"x": "one", "y": "unu"}))
    check(*args, "--do-train")


def test_rows_that_a_plugin_may_change_are_not_judged(write, tmp_path):
    (tmp_path / "mine.py").write_text("class Rows:\n    pass\n")
    check("--train-file", write("a.jsonl", {"x": 1}), "--plugin", "mine:Rows")


def test_only_the_head_of_a_file_is_read(write):
    check("--train-file", write("a.jsonl", json.dumps(PAIR) + "\n" + (json.dumps(PAIR) + "\n") * 60_000 + "{oops\n"))


@pytest.mark.parametrize(
    ("model", "flags", "split"),
    [
        ("demo-t5", ("--load_best_model_at_end",), "validation"),
        ("demo-t5", ("--eval_strategy", "steps"), "validation"),
        ("demo-t5", ("--early-stopping", "3"), "validation"),
        ("demo-llama", ("--load_best_model_at_end", "--validation-split-percentage", "0"), "validation"),
        ("demo-llama", ("--do-predict",), "test"),
    ],
)
def test_missing_split_named_with_its_flag(write, model, flags, split):
    row = {**PAIR, "text": "x"}
    args = ("--train-file", write("a.jsonl", row), *flags)
    error = refused(*args, model=model)
    assert error.message.startswith(f"there is no {split} data in a.jsonl")
    assert error.fix == f"--{split}-file FILE"
    check(*args, f"--{split}-file", write("b.jsonl", row), model=model)


def test_validation_data_held_out_is_there(write):
    check("--train-file", write("a.jsonl", PAIR), "--load_best_model_at_end", model="demo-llama")


def test_splits_of_a_folder_are_found(write, tmp_path):
    (tmp_path / "data").mkdir()
    write("data/train.jsonl", PAIR)
    assert "no validation data" in refused("--dataset", "./data", "--load_best_model_at_end").message
    (tmp_path / "empty").mkdir()
    assert "no data files" in refused("--dataset", "./empty").message
    write("data/dev.jsonl", PAIR)
    check("--dataset", "./data", "--load_best_model_at_end")


def test_set_of_a_mixture_is_named(write):
    write("run.yaml", json.dumps({"data": {"sets": {"news": {"train_file": write("a.jsonl", {"a": "x", "b": "y"})}}}}))
    assert refused("--config", "run.yaml").message.startswith("set news: a.jsonl: ")


def test_model_that_only_transformers_knows_may_learn_either(write, tmp_path):
    args = ("--train-file", write("a.jsonl", PAIR), "--load_best_model_at_end")
    check(*args, model="owner/model")
    assert (
        "columns found" in refused("--train-file", write("b.jsonl", {"a": "x", "b": "y"}), model="owner/model").message
    )


@pytest.mark.parametrize(
    ("config", "tasks"),
    [
        ({"model_type": "t5"}, ("seq2seq",)),
        ({"model_type": "of-next-year", "is_encoder_decoder": True}, ("seq2seq",)),
        ({"model_type": "llama"}, ("causal-lm",)),
        ({"model_type": "llama", "auto_map": {}}, ("seq2seq", "causal-lm")),
        ({}, ("seq2seq", "causal-lm")),
    ],
)
def test_task_of_a_local_model(tmp_path, config, tasks):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert tasks_of(TrainSpec(model=str(tmp_path))) == tasks
    assert tasks_of(TrainSpec(model=str(tmp_path), task="dpo")) == ("dpo",)


@pytest.mark.parametrize(
    ("row", "model", "followed_by"),
    [
        ({"text": "x", "images": ["a.png"]}, "demo-llama", ("--ignore-columns", "images")),
        ({"messages": [said(), said("assistant")], "videos": ["a.mp4"]}, "demo-llama", ("--ignore-columns", "videos")),
        ({**PAIR, "audio": {"path": "a.wav"}}, "demo-t5", ("--ignore-columns", "audio")),
        ({**PAIR, "history": [["a", "b"]]}, "demo-t5", ("--ignore-columns", "history")),
        ({**PAIR, "history": [["a", "b"]]}, "demo-llama", ("--apply-chat-template", "--chat-template", "chatml")),
        ({**ANSWERS, "tools": [{"name": "f"}]}, "demo-llama", ("--ignore-columns", "tools")),
    ],
)
def test_column_that_the_model_cannot_learn(write, row, model, followed_by):
    args = ("--train-file", write("a.jsonl", row), *(("--task", "dpo") if "chosen" in row else ()))
    error = refused(*args, model=model)
    assert f"`{' '.join(followed_by[:2])}`" in error.message or followed_by[0] == "--apply-chat-template"
    check(*args, *followed_by, model=model)


def test_first_row_of_a_file_without_names_is_no_name(write):
    file = write("a.tsv", "the cat sat on the mat\tle chat est sur le tapis\nthe dog ran\tle chien court\n")
    assert "--text-column" not in refused("--train-file", file).fix
