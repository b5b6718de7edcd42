"""The data of a first run, what its columns mean, and with it what the model learns; and which chat template makes text
of its conversations."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsrun.cli.init.found import SHOWN, DataFile, data_files, read_sample, row_count
from dsrun.cli.init.interview import InitAnswer, InitInterview, question
from dsrun.cli.init.model import InitModel
from dsrun.demo.models import DEMO_LLAMA
from dsrun.errors import UsageError, did_you_mean, nearest
from dsrun.models.folder import HUB_NAME
from dsrun.recipe.preflight.data import lacks_template
from dsrun.recipe.preflight.files import CHAT_TEMPLATES, check_files, is_path
from dsrun.recipe.preflight.layouts import LayoutHints, RowLayout, detect
from dsrun.recipe.preflight.splits import expanded, split_of
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.terminal.display import printable
from dsrun.system.terminal.stderr import print_detail, print_error, print_note

DEMO = "demo"


@dataclass(frozen=True, kw_only=True)
class InitData:
    """What a run reads: files or a dataset, or the demo's data with neither.

    `row` is a sample, {} where there is none to look at; `layout` what its columns mean."""

    source: str
    train_file: tuple[str, ...] = ()
    dataset: str | None = None
    row: dict[str, Any]
    rows: int | None = None
    layout: RowLayout | None = None
    text_column: str | None = None
    summary_column: str | None = None
    validation_file: tuple[str, ...] = ()
    validation_source: str = ""

    @property
    def is_demo(self) -> bool:
        return not self.train_file and not self.dataset


def ask_data(interview: InitInterview, given: dict[str, Any], model: InitModel) -> InitData:
    """Ask for training data; its validation data is that of the options, or the file here that is named so."""
    there = data_files(Path.cwd())
    offered = [each for each in there if not each.is_held_out][:SHOWN]
    spec = TrainSpec(
        model=model.name, from_scratch=model.from_scratch, task=given["task"] or "auto",
        # What a tokenizer lacks is asked for once the data is known.
        chat_template=CHAT_TEMPLATES[0], text_column=given["text_column"],
    )  # fmt: skip
    found = _training_data(interview, given, model, spec, offered)
    data = replace(found.value, source=found.source)
    named = tuple(given["validation_file"])
    if named:
        check_files(TrainSpec(train_file=list(data.train_file), validation_file=list(named)))
        return replace(data, validation_file=named, validation_source="as --validation-file says")
    named_so = [each for each in there if split_of(each.path.name) == "validation"]  # a test file is for the end
    beside = [each for each in named_so if data.row and set(each.row) == set(data.row)]
    if data.train_file and beside:
        file = str(beside[0].path)
        return replace(
            data, validation_file=(file,), validation_source="found: its name says so, its columns are alike"
        )
    return data


def _training_data(
    interview: InitInterview, given: dict[str, Any], model: InitModel, spec: TrainSpec, offered: Sequence[DataFile]
) -> InitAnswer[InitData]:
    if given["train_file"]:
        data = _of_files(list(given["train_file"]), spec)
        return InitAnswer(_refuse_chats(data, model), "as --train-file says")
    if given["dataset"]:
        return InitAnswer(_of_dataset(given["dataset"], spec), "as --dataset says")
    if model.is_demo and not offered:
        return InitAnswer(InitData(source="", row={}), "the demo's own data")
    demo = (DEMO, "its own data" if model.is_demo else "built-in data, to try the model")
    choices = [(str(each.path), each.description(model.task)) for each in offered]
    choices = [demo, *choices] if model.is_demo else [*choices, demo]
    fit = [each for each in offered if each.layout(model.task)] or ([] if model.is_demo else offered)
    asked = question(
        "--train-file",
        lambda text: _refuse_chats(_named(text, spec, model), model),
        choices=choices,
        default=str(fit[0].path) if fit else DEMO if model.is_demo else None,
        why="found in this folder" if fit else "the demo's own data",
    )
    return interview.answer(asked, None)


def _refuse_chats(data: InitData, model: InitModel) -> InitData:
    """The data; UsageError, with what to do, for conversations that a seq2seq model is to learn."""
    file = DataFile(path=Path(), row=data.row, size=0)
    if data.row and model.task == "seq2seq" and file.layout("seq2seq") is None:
        found = file.layout("causal-lm")
        if found and found.is_chat:
            wrong = f"{(*data.train_file, data.dataset)[0]} holds conversations, and {model.name} is a seq2seq model"
            raise UsageError(wrong, fix=f"a causal LM learns them: --model {DEMO_LLAMA}, or Qwen/Qwen3-0.6B")
    return data


def _named(text: str, spec: TrainSpec, model: InitModel) -> InitData:
    """The data behind an answer: the word demo, files, a folder, or a name on the Hub."""
    if text == DEMO:
        if model.task is None or model.is_demo or spec.task != "dpo":
            return InitData(source="", row={})
        raise UsageError("there is no demo data for dpo", fix="name a file with chosen and rejected answers")
    path = Path(text).expanduser()
    if path.is_dir():
        return _of_dataset(text, spec)
    if path.exists() or is_path(text) or any(mark in text for mark in "*?["):
        return _of_files([text], spec)
    try:
        words = shlex.split(text)
    except ValueError:
        words = [text]
    return _of_files(words, spec) if len(words) > 1 else _of_dataset(text, spec)


def _of_files(names: list[str], spec: TrainSpec) -> InitData:
    check_files(replace(spec, train_file=names))
    files = expanded("--train-file", names)
    counts = [row_count(each) for each in files]
    rows = sum(filter(None, counts)) if None not in counts else None
    return InitData(source="", train_file=tuple(names), row=read_sample(files[0]), rows=rows)


def _of_dataset(name: str, spec: TrainSpec) -> InitData:
    if is_path(name):
        check_files(replace(spec, dataset=name))
        path = Path(name).expanduser()
        return InitData(source="", dataset=name, row=read_sample(path) if path.is_file() else {})
    near = nearest(name, [entry.name for entry in Path.cwd().iterdir()])
    if near or not HUB_NAME.fullmatch(name):
        fix = f"did you mean {near}?" if near else "a name on the Hub is owner/name"
        raise UsageError(f"there is no data called {name}", fix=fix)
    print_note(f"{name} is taken for a dataset of the Hub: the run looks for it when it starts")
    return InitData(source="", dataset=name, row={})


def ask_task(interview: InitInterview, given: dict[str, Any], model: InitModel, data: InitData) -> InitAnswer[str]:
    """What the model learns: as its config and the columns tell, or as the user answers."""
    prefers = bool({"chosen", "chosen_response"} & set(data.row)) and model.task != "seq2seq"
    default, why = model.task or "auto", "as the model's config says"
    if model.task is None and model.kind is not None:
        default, why = "seq2seq", f"by its name it is a {model.kind} model"
    elif model.task is None:
        is_text = data.row and DataFile(path=Path(), row=data.row, size=0).layout("seq2seq") is None
        default = "causal-lm" if is_text else "auto"
        why = "as the data is text without a source and a target column" if is_text else f"{why} when the run starts"
    if prefers:
        default, why = "dpo", "as the data has chosen and rejected answers"
    if given["task"] is None and model.task is not None:
        return InitAnswer(default, why)
    asked = question("--task", lambda text: _check_task(text, model), default=default, why=why)
    return interview.answer(asked, given["task"])


def _check_task(text: str, model: InitModel) -> str:
    if model.task is not None and text not in ("auto", model.task) and (text, model.task) != ("dpo", "causal-lm"):
        raise UsageError(f"--task {text}: {model.name} is a {model.kind} model, which cannot do that")
    return text


NONE = "none"


def with_columns(interview: InitInterview, given: dict[str, Any], data: InitData, task: str) -> InitData:
    """The data with what its columns mean; asks for them where their names do not tell.

    Raises UsageError without a terminal, as the training would."""
    text, summary = given["text_column"], given["summary_column"]
    if not data.row:
        return replace(data, text_column=text, summary_column=summary)
    where = (*data.train_file, data.dataset or "")[0]
    tasks = [task] if task != "auto" else ["seq2seq", "causal-lm"]
    refused = None
    named = TrainSpec(text_column=text, summary_column=summary)
    for each in tasks:
        try:
            layout = detect(list(data.row), data.row, LayoutHints.of(named, each), where)
        except UsageError as error:
            refused = error
            continue
        meaning = "conversations" if layout.is_chat else layout.name
        print_detail(f"columns of {printable(where)}: {printable(meaning)}")
        return replace(data, layout=layout, text_column=text, summary_column=summary)
    assert refused is not None
    if not interview.asks or task == "dpo" or text or summary:
        raise refused
    print_error(f"{where}: the names of its columns do not tell what they mean for {task}")
    return _with_asked_columns(interview, data, tasks[0], where)


def _with_asked_columns(interview: InitInterview, data: InitData, task: str, where: str) -> InitData:
    """A seq2seq model needs a source and a target; what a causal LM reads may be a text alone."""
    columns = [(name, _excerpt(value)) for name, value in data.row.items()]
    source = interview.answer(
        question(
            "--text-column",
            lambda text: _check_column(text, data.row, "--text-column"),
            text=f"Which column holds the {'source text' if task == 'seq2seq' else 'text, or prompt'}?",
            choices=columns,
        ),
        None,
    ).value
    others = [each for each in columns if each[0] != source]
    target: str | None = None
    if others or task == "seq2seq":
        may_lack = task != "seq2seq"
        answer = interview.answer(
            question(
                "--summary-column",
                lambda text: text if may_lack and text == NONE else _check_target(text, data.row, source),
                text=f"Which column holds the {'answer to it' if may_lack else 'target text'}?",
                choices=[*others, (NONE, "the text stands alone")] if may_lack else others,
                default=NONE if may_lack else None,
            ),
            None,
        ).value
        target = None if may_lack and answer == NONE else answer
    hints = LayoutHints.of(TrainSpec(text_column=source, summary_column=target), task)
    layout = detect(list(data.row), data.row, hints, where)
    return replace(data, layout=layout, text_column=source, summary_column=target)


def _check_target(name: str, row: dict[str, Any], source: str) -> str:
    if name == source:
        raise UsageError(f"--summary-column {name} is the source column already", fix="name another column")
    return _check_column(name, row, "--summary-column")


def _check_column(name: str, row: dict[str, Any], flag: str) -> str:
    if name not in row:
        raise UsageError(f"{flag} {name} is not a column of the data", fix=did_you_mean(name, row))
    return name


def _excerpt(value: Any) -> str:
    text = printable(" ".join(str(value).split()))
    return text if len(text) <= 50 else f"{text[:49]}…"


def ask_chat_template(
    interview: InitInterview, given: dict[str, Any], model: InitModel, data: InitData
) -> InitAnswer[str] | None:
    """A template for conversations, where the tokenizer in a local folder has none; None where it needs none."""
    folder = Path(model.name).expanduser()
    lacking = data.layout is not None and data.layout.is_chat and is_path(model.name) and lacks_template(folder)
    if not lacking and given["chat_template"] is None:
        return None
    asked = question("--chat-template", _check_template, default=CHAT_TEMPLATES[0])
    return interview.answer(asked, given["chat_template"])


def _check_template(name: str) -> str:
    if name not in CHAT_TEMPLATES and not Path(name).expanduser().is_file():
        raise UsageError(f"--chat-template {name} does not exist", fix=f"a jinja file, or {CHAT_TEMPLATES[0]}")
    return name
