"""What the columns of a dataset mean: a pure function of the columns' names, one sample row and the user's hints. A
layout brings every row into one of the normal forms that layouts.toml describes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any, Literal, Self

from dsrun.datafiles import toml_beside
from dsrun.errors import DsrunError, UsageError, did_you_mean
from dsrun.recipe.preflight.bad_rows import UNREADABLE
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.rows.beside import ColumnPairs, beside
from dsrun.refusals import Refusals

LayoutKind = Literal["pair", "text", "chat", "tokens", "preference", "chat-preference"]

_KNOWN, _TEXTS = toml_beside(__file__), Refusals(__file__, "refusals.toml")
PAIRS = tuple((tuple(source.split("+")), target) for source, target in (pair.split("/") for pair in _KNOWN["pairs"]))
"""Source columns (joined by a line break when there are several) and the target column, in order of preference."""

CHATS = ("messages", "conversations")
ANSWERS = (("chosen", "rejected"), ("chosen_response", "rejected_response"))
"""The columns of the answer that people preferred and of the other one."""
PROMPTS = (("prompt",), ("question",), ("instruction", "input"), ("instruction",), ("input",), *((c,) for c in CHATS))
"""The columns of what both answer; without one, both begin with it."""

TEXTS = ("text", "content")
PIECE = ("text", "starts", "ends")
"""The columns of a txt file, whose rows are pieces of documents."""
FORMS: dict[str, dict[str, str]] = _KNOWN["forms"]
_TARGETS = frozenset(target for _, target in PAIRS)
# Hints that have the names of flags.
_SAME = ("text_column", "summary_column", "source_lang", "target_lang", "apply_chat_template")
# Columns that an error names.
_SHOWN = 20


@dataclass(frozen=True)
class LayoutHints:
    task: str
    text_column: str | None = None
    summary_column: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    apply_chat_template: bool = False
    preference: bool = False
    ignore_columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: TrainSpec, task: str) -> Self:
        """Those of a run that learns this: seq2seq or causal-lm, or dpo."""
        return cls(
            "seq2seq" if task == "seq2seq" else "causal-lm",
            **{name: getattr(spec, name) for name in _SAME},
            preference=task == "dpo" or spec.task == "dpo",
            ignore_columns=tuple(spec.ignore_columns),
        )


@dataclass(frozen=True)
class RowLayout:
    """How rows are read: `columns` are the fields of the normal form, in its order; `target` the column of the answer
    and `rejected` that of the worse one; `keys` the languages of a translation dictionary; `separator` goes between
    source and target when a causal model reads them as one text; `found` are all columns of the first rows, and
    `beside` and `refused` what `dsrun.recipe.rows.beside` has for them."""

    kind: LayoutKind
    columns: tuple[str, ...]
    target: str | None = None
    rejected: str | None = None
    keys: tuple[str, str] | None = None
    separator: str = "\n"
    notice: str | None = None
    found: tuple[str, ...] = ()
    beside: ColumnPairs = ()
    refused: ColumnPairs = ()

    @property
    def name(self) -> str:
        if self.keys:
            return f"{self.columns[0]} {self.keys[0]} → {self.keys[1]}"
        answers = " / ".join(filter(None, (self.target, self.rejected)))
        return " → ".join(filter(None, (" + ".join(self.columns), answers)))

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that become part of a sample."""
        own = (*self.columns, *filter(None, (self.target, self.rejected)))
        return (*own, *(column for _, column in self.beside))

    @property
    def used(self) -> tuple[str, ...]:
        """All that are looked at, be it to refuse a row."""
        return (*self.read, *(column for column, _ in self.refused))

    def unread(self, later: Iterable[str] = ()) -> list[str]:
        """The columns that nothing looks at, of those found and of later ones."""
        return [name for name in dict.fromkeys((*self.found, *later)) if name not in (*self.used, UNREADABLE)]

    def pick(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What is read of a row: columns under their names, those beside under what they mean."""
        own = {name: row[name] for name in self.read if name in row}
        return own | {meaning: row[column] for meaning, column in self.beside if column in row}

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns without which a row cannot be used: others, `input` beside an instruction, may be left out."""
        asked = self.columns[: 2 if "completion" in self.columns else 1]
        return (*asked, *filter(None, (self.target, self.rejected)))

    def lack(self, row: Mapping[str, Any]) -> str:
        """Which of those, or of the languages of a translation, a row does not have; empty where it has all."""
        known = row.get(self.columns[0]) if self.keys else None
        languages = [key for key in self.keys or () if isinstance(known, Mapping) and key not in known]
        lacking = [name for name in self.needed if name not in row] + languages
        return f"no {' and no '.join(lacking)}; columns found: {columns_in_words([*row])}" if lacking else ""

    @property
    def is_chat(self) -> bool:
        """Whether the tokenizer's chat template renders the rows."""
        return self.kind in ("chat", "chat-preference")


def detect(columns: Sequence[str], sample: Mapping[str, Any], hints: LayoutHints, where: str) -> RowLayout:
    """What the columns mean. `sample` is a row that has a value in as many columns as possible; `where` names the data.
    Raises UsageError where no layout fits the task."""
    for flag, column in (("--text-column", hints.text_column), ("--summary-column", hints.summary_column)):
        if column is not None and column not in columns:
            near, known = did_you_mean(column, columns, f"name one of them: {flag} NAME"), columns_in_words(columns)
            raise _TEXTS.error("columns.absent", flag=flag, where=where, column=column, found=known, near=near)
    find = _seq2seq if hints.task == "seq2seq" else _preference if hints.preference else _causal
    found = (*columns,)
    columns = [name for name in found if name not in hints.ignore_columns]
    sample = {name: value for name, value in sample.items() if name in columns}
    layout = find(columns, sample, hints, where)
    if layout is None:
        raise _unknown(columns, sample, hints, where)
    _TEXTS.check("template", hints=hints, layout=layout, where=where)
    if hints.apply_chat_template and layout.kind == "pair":
        layout = replace(layout, kind="chat")
    read, refused = beside(_variety(layout, columns, sample), columns, (*layout.read, *hints.ignore_columns))
    return replace(layout, found=found, beside=read, refused=refused)


def _variety(layout: RowLayout, columns: Sequence[str], sample: Mapping[str, Any]) -> str:
    """Which of the layouts of beside.toml it is."""
    if layout.kind == "tokens" and not layout.target and "labels" in columns:
        return "tokens-labels"
    if layout.kind == "text" and isinstance(sample.get("starts"), bool):
        return "text-piece"
    is_pair = layout.kind in ("chat", "tokens") and (layout.target or layout.keys)
    return f"{layout.kind}-pair" if is_pair else layout.kind


def no_template(where: str, tokenizer: str = "") -> DsrunError:
    """The error for conversations that no chat template renders."""
    return _TEXTS.error("chat.no_template", where=where, place=tokenizer and f" in {tokenizer}")


def _seq2seq(columns: Sequence[str], sample: Mapping[str, Any], hints: LayoutHints, where: str) -> RowLayout | None:
    if hints.text_column and hints.summary_column:
        return RowLayout("pair", (hints.text_column,), hints.summary_column)
    if {"input_ids", "labels"} <= set(columns):
        return RowLayout("tokens", ("input_ids",), "labels")
    return _translation(columns, sample, hints, where) or _known_pair(columns, sample, hints)


def _causal(columns: Sequence[str], sample: Mapping[str, Any], hints: LayoutHints, where: str) -> RowLayout | None:
    if hints.text_column and hints.summary_column:
        return RowLayout("pair", (hints.text_column,), hints.summary_column)
    if hints.summary_column:
        return _known_pair(columns, sample, hints)
    if "input_ids" in columns and not hints.text_column:
        return RowLayout("tokens", ("input_ids",))
    return (
        _conversation(columns, sample, hints)
        or _translation(columns, sample, hints, where)
        or (None if hints.text_column else _known_pair(columns, sample, hints))
        or _documents(columns, sample, hints, where)
    )


def _preference(columns: Sequence[str], sample: Mapping[str, Any], hints: LayoutHints, where: str) -> RowLayout | None:
    chosen, rejected = next((pair for pair in ANSWERS if set(pair) <= set(columns)), (None, None))
    if chosen is None:
        return None
    prompts = ((hints.text_column,),) if hints.text_column else PROMPTS
    prompt = next((names for names in prompts if set(names) <= set(columns)), ())
    if hints.apply_chat_template and not prompt:
        raise UsageError(f"--apply-chat-template: {where} has no prompts beside {chosen} and {rejected}")
    if hints.apply_chat_template or any(isinstance(sample.get(name), list | Mapping) for name in (*prompt, chosen)):
        return RowLayout("chat-preference", prompt, chosen, rejected)
    # A prompt is written to be continued as it stands, and so is what two texts begin with.
    separator = "" if prompt in ((), ("prompt",)) else "\n"
    return RowLayout("preference", prompt, chosen, rejected, separator=separator)


def _conversation(columns: Sequence[str], sample: Mapping[str, Any], hints: LayoutHints) -> RowLayout | None:
    for column in (hints.text_column,) if hints.text_column else CHATS:
        # A conversation in a CSV file is JSON in a text.
        if column in columns and (column in CHATS or isinstance(sample.get(column), list)):
            return RowLayout("chat", (column,))
    if {"prompt", "completion"} <= set(columns) and isinstance(sample.get("prompt"), list):
        return RowLayout("chat", ("prompt", "completion"))
    return None


def _documents(columns: Sequence[str], sample: Mapping[str, Any], hints: LayoutHints, where: str) -> RowLayout | None:
    if column := hints.text_column or next((name for name in TEXTS if name in columns), None):
        return RowLayout("text", (column,))
    if len(columns) == 1 and isinstance(sample.get(columns[0]), str):
        notice = f"{where}: the only column, {columns[0]!r}, is taken as the text"
        return RowLayout("text", (columns[0],), notice=notice)
    return None


def _translation(columns: Sequence[str], sample: Mapping[str, Any], hints: LayoutHints, where: str) -> RowLayout | None:
    column = "translation" if "translation" in columns else hints.text_column
    if column is None or not isinstance(sample.get(column), Mapping):
        return None
    found = list(sample[column])
    keys = translation_keys(found, hints.source_lang, hints.target_lang, where)
    notice = None
    if not (hints.source_lang and hints.target_lang):
        notice = f"{where}: translating {keys[0]} → {keys[1]}; --source-lang and --target-lang say otherwise"
    return RowLayout("pair", (column,), keys=keys, notice=notice)


def _known_pair(columns: Sequence[str], sample: Mapping[str, Any], hints: LayoutHints) -> RowLayout | None:
    for source, target in PAIRS:
        if (hints.text_column and source != (hints.text_column,)) or (hints.summary_column or target) != target:
            continue
        if {*source, target} <= {*columns} and not isinstance(sample.get(target), Mapping | list):
            # A prompt is written to be continued as it stands; other pairs need something between their halves.
            return RowLayout("pair", source, target, separator="" if source == ("prompt",) else "\n")
    return None


def _unknown(columns: Sequence[str], sample: Mapping[str, Any], hints: LayoutHints, where: str) -> DsrunError:
    """The error for columns that make no layout. Raises it where refusals.toml has one of its own."""
    lists = {name: value for name, value in sample.items() if isinstance(value, list)}
    of_texts = (name for name, value in lists.items() if value and all(isinstance(each, str) for each in value))
    column, has_answers = next(of_texts, None), any({*pair} <= {*columns} for pair in ANSWERS)
    talks, is_text = not lists.keys().isdisjoint((*CHATS, "prompt")), (*columns,) == PIECE
    names = {"where": where, "found": columns_in_words(columns), "hints": hints, "column": column}
    _TEXTS.check("unknown", is_text=is_text, has_answers=has_answers, talks=talks, **names)
    what = "source and target" if hints.task == "seq2seq" or hints.summary_column else "the text to learn"
    return _TEXTS.error("columns.unclear", what=what, flags=_columns_fix(columns, sample, hints), **names)


def _columns_fix(columns: Sequence[str], sample: Mapping[str, Any], hints: LayoutHints) -> str:
    """The flags that name the columns: with their names where only one choice makes sense."""
    if any(len(name.split()) > 3 for name in columns):
        return "the names look like a row: put a line with the names of the columns before it"
    texts = [name for name in columns if isinstance(sample.get(name), str) and not sample[name].isdigit()]
    texts = [name for name in texts if name not in (hints.text_column, hints.summary_column)]
    # Of two texts the target comes second, as in all known pairs, unless a name says otherwise.
    if len(texts) == 2 and texts[0] in _TARGETS and texts[1] not in _TARGETS:
        texts.reverse()
    flags = {"--text-column": "SOURCE", "--summary-column": "TARGET"}
    if hints.text_column or hints.summary_column:
        del flags["--text-column" if hints.text_column else "--summary-column"]
    elif hints.task != "seq2seq" and len(texts) != 2:
        flags = {"--text-column": "TEXT"}
    if len(texts) < len(flags):
        return "give data with a source and a target text" if hints.task == "seq2seq" else "give data with a text"
    names = texts if len(texts) == len(flags) else flags.values()
    return f"add `{' '.join(f'{flag} {quote(name)}' for flag, name in zip(flags, names, strict=True))}`"


def columns_in_words(columns: Sequence[str]) -> str:
    more = len(columns) - _SHOWN
    shown = ", ".join(name or "(without a name)" for name in columns[:_SHOWN]) or "none"
    return f"{shown} and {more:,} more" if more > 0 else shown


def translation_keys(found: Sequence[str], source: str | None, target: str | None, where: str) -> tuple[str, str]:
    """The keys of the source and the target text in a translation dictionary.

    Codes of models match the keys of data: `en_XX` and `eng_Latn` find `en`. A language that was not given is the other
    of exactly two keys; with neither given they are taken in order."""
    source_key = _key(found, source, "--source-lang", where, other=target) if source else None
    target_key = _key(found, target, "--target-lang", where, other=source) if target else None
    if source_key is None or target_key is None:
        if len(found) != 2:
            raise _TEXTS.error("languages.many", where=where, found=", ".join(found) or "nothing")
        first, second = found
        source_key = source_key or (first if target_key != first else second)
        target_key = target_key or (second if source_key != second else first)
    if source_key == target_key:
        raise UsageError(f"source and target language are both {source_key!r}")
    return source_key, target_key


def _key(found: Sequence[str], wanted: str, flag: str, where: str, *, other: str | None) -> str:
    head = wanted.split("_", maxsplit=1)[0].split("-", maxsplit=1)[0].lower()
    for candidate in (wanted, head, toml_beside(__file__, "languages.toml").get(head, "")):
        if candidate in found:
            return candidate
    free = next((each for each in found if each != other), found[0])
    raise UsageError(f"{flag} {wanted}: {where} has translations for {', '.join(found)}", fix=f"{flag} {free}")
