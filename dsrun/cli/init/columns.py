"""What the columns of the data mean, and which chat template makes text of its conversations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from dsrun.cli.init.data import InitData
from dsrun.cli.init.interview import InitAnswer, InitInterview, question
from dsrun.cli.init.model import InitModel
from dsrun.errors import UsageError, did_you_mean
from dsrun.recipe.preflight.data import lacks_template
from dsrun.recipe.preflight.files import CHAT_TEMPLATES, is_path
from dsrun.recipe.preflight.layouts import LayoutHints, detect
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.terminal.display import printable
from dsrun.system.terminal.stderr import print_detail, print_error

NONE = "none"


def with_columns(interview: InitInterview, given: dict[str, Any], data: InitData, task: str) -> InitData:
    """The data with what its columns mean; asks for them where their names do not tell.

    Raises UsageError without a terminal, as the training would.
    """
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
