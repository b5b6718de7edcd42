"""The file of another tool as the settings of a run.yaml. What becomes of each key is in other_tools.toml."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError
from dsrun.recipe.compat import imported_values
from dsrun.recipe.compat.removed import OUTCOMES, row_of, tables, translate, vocabulary
from dsrun.recipe.flags import SECRETS, all_flags, shown_value
from dsrun.recipe.parsed_value import from_data

TOOLS = toml_beside(__file__)
"""How each tool is recognised, and its defaults that matter."""
UNSET: tuple[object, ...] = (None, "", [], {})


@dataclass
class ImportedRun:
    """What a file, or a part of it, comes to: `values` by our names, each with its reason in `why` unless it is copied,
    and lines about keys without a counterpart (`notes`) or with another meaning (`refused`).

    `keys` is the table of other_tools.toml, `place` where the part begins, `lines` where each key is. `kinds` says
    what was met: packed rows, running text."""

    tool: str
    config: Mapping[str, Any]
    folder: Path
    keys: str
    place: str = ""
    lines: dict[str, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    sets: list[dict[str, Any]] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)

    def part(self, keys: str, config: Mapping[str, Any], place: str, **changes: Any) -> "ImportedRun":
        """With the keys of a part of the file taken in."""
        return replace(self, keys=keys, place=f"{place}.", lines={}, **changes).read(config)

    def read(self, config: Mapping[str, Any]) -> "ImportedRun":
        """Take in every key of `config` that has a value."""
        for key, value in config.items():
            if value not in UNSET:
                line = f"{self.place}{self.lines[key]}: " if key in self.lines else self.place
                self._key(str(key), value, f"{line}{key}")
        return self

    def _key(self, key: str, value: Any, where: str) -> None:
        table, is_whole = tables()[self.keys], self.keys == self.tool
        ours = vocabulary().keys() - table.keys() - SECRETS
        row = {"to": key} if is_whole and key in ours else row_of(table, key)
        if row is None and is_whole:
            row = next(filter(None, (row_of(rows, key) for tool, rows in tables().items() if "'" not in tool)), None)
        if row is None:
            self.notes.append(f"{where}: dsrun does not know this key: left out")
        else:
            self.take(row, key, value, where)

    def take(self, row: Mapping[str, Any], key: str, value: Any, where: str) -> None:
        """What a row says of a value."""
        for each in value if row.get("each") and isinstance(value, list) else [value]:
            case = next((case for case in row.get("cases", ()) if _holds(case, each)), None)
            # A case without an outcome: dsrun does the same. A row by itself: what is off needs no counterpart.
            try:
                if case is None or OUTCOMES & case.keys():
                    self._apply(case or row, key, each, where, is_off=case is None and not each)
            except (AttributeError, KeyError, TypeError, ValueError):  # a text where a list should be, and the like
                self.refused.append(f"{where} {shown_value(key, each)}: not a value that {self.tool} takes")

    def _apply(self, row: Mapping[str, Any], key: str, value: Any, where: str, *, is_off: bool) -> None:
        self.kinds.update(row.get("kinds", ()))
        if "by" in row:
            getattr(imported_values, row["by"])(self, key, value, where)
        elif "table" in row:
            self.part(row["table"], value, where)
        elif "set" in row or "to" in row:
            for name, given in row.get("set", {row.get("to"): "$"}).items():
                self.give(name, _filled(given, value), where, row.get("why", ""))
        elif "refuse" in row and not is_off:
            drop = "" if self.keys.startswith("LLaMA-Factory's") else f" (or --drop {key})"  # these are of another file
            self.refused.append(f"{where} {shown_value(key, value)}: {row['refuse']}{drop}")
        elif (note := row.get("note") or row.get("answer")) and "refuse" not in row and not is_off:
            self.notes.append(f"{where}: {note}")

    def give(self, name: str, value: Any, where: str, why: str = "") -> None:
        """Set a flag by any of its names; removed ones are translated. What it does not take is refused."""
        flag = vocabulary().get(name)
        if flag is None:
            self.refused.append(f"{where}: this release has no --{name.replace('_', '-')}")
            return
        if flag.kind == "list" and isinstance(value, str):
            value = [each.strip() for each in value.split(",")]
        if flag.kind == "str" and isinstance(value, list) and len(value) == 1:
            value = value[0]
        try:
            given, notice = translate(from_data(flag, value, spelling=name, source=where, where=where), self.values)
        except UsageError as error:
            self.refused.append(str(error))
            return
        if given is None:
            self.notes.append(str(notice))
        else:
            self.values[given.name] = given.value
            self.why[given.name] = why


def _holds(case: Mapping[str, Any], value: Any) -> bool:
    if "is" not in case:
        return fnmatchcase(str(value), case.get("like", "*"))
    among = case["is"] if isinstance(case["is"], list) else [case["is"]]
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in among)


def _filled(given: Any, value: Any) -> Any:
    if isinstance(given, dict):
        return {key: _filled(each, value) for key, each in given.items()}
    return value if given == "$" else given


def tool_of(config: Mapping[str, Any], shown: str) -> str:
    """The tool that a file is for, by its keys. Raises UsageError where none, or more than one, has them."""
    found = [tool for tool, facts in TOOLS.items() if any(keys <= config.keys() for keys in map(set, facts["marks"]))]
    if len(found) != 1:
        why = f"has the keys of {' and '.join(found)}" if found else "has the keys of no tool that is known"
        raise UsageError(f"{shown} {why}", fix=f"`dsrun import --from {'|'.join(TOOLS)}` says which")
    return found[0]


def import_run(run: ImportedRun, gpus: int) -> ImportedRun:
    """The whole file: its keys, then what the tool does where a key is not given and dsrun does something else."""
    facts = TOOLS[run.tool]
    run.read(dict(sorted(run.config.items(), key=lambda item: item[0] in facts.get("last", ()))))
    empty = [key for key in facts.get("empty", ()) if run.config.get(key, 0) is None]
    run.refused += [f"{run.place} {key} is empty: {facts['empty'][key]}" for key in empty]
    if any(key in run.config for key in facts["dpo"]):
        run.give("task", "dpo", run.place, "its keys are those of DPO")
    is_dpo = run.values.get("task") == "dpo"
    absent = {} if is_dpo else facts["absent"]
    run.notes += [f"{run.place} {text}" for key, text in absent.items() if key not in run.config]
    more = facts.get("defaults_dpo", {}) if is_dpo else {}
    for name, value in {**facts["defaults"], **more, **_adapters(run, facts["lora"])}.items():
        if not {name, *facts["instead"].get(name, ())} & run.values.keys():
            run.give(name, value, run.place, facts["why"].get(name, f"the default of {run.tool}"))
    if run.values.get("quantization") and run.values.get("offload") == "cpu":
        run.give("offload", "optimizer", run.place, "quantised weights stay on the GPU")
    run.values |= _data(run)
    _batch(run, gpus)
    if run.values.get("sequence_parallel"):
        run.values["long_context"] = run.values.pop("max_length", None)
    run.values = {name: run.values[name] for name in all_flags() if name in run.values}
    return run


def _adapters(run: ImportedRun, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of adapters; where the file trains none, what it says of them is taken out."""
    if run.config.get(facts["key"], facts.get("default")) in facts["on"]:
        return dict(facts.get("defaults", {}))
    for name in [each for each in run.values if each.startswith(("lora", "rslora", "dora", "quantization"))]:
        del run.values[name]
    return {}


def _data(run: ImportedRun) -> dict[str, Any]:
    """The data: of one set as they are, of several as a mixture."""
    if len(run.sets) < 2:
        return run.sets[0] if run.sets else {}
    names = [Path(str(each.get("dataset") or each.get("train_file", ["set"])[0])).stem for each in run.sets]
    names = [name if names.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(names, 1)]
    sets = dict(zip(names, run.sets, strict=True))
    if "validation_file" in run.values:
        sets["validation"] = {"validation_file": run.values.pop("validation_file")}
    return {"mix": {"sets": sets}}


def _batch(run: ImportedRun, gpus: int) -> None:
    """Where rows are packed the tools count rows, and dsrun counts samples: the same batch is one of tokens."""
    if run.values.pop("packing", None) != "auto" or "text" in run.kinds:
        return
    sizes = ("micro_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
    micro, other, steps = (run.values.pop(name, None) for name in sizes)
    ranks = max(1, gpus // (run.values.get("sequence_parallel") or 1))  # the GPUs of a rank share its rows
    rows = (micro or other or 8) * (steps or 1) * ranks
    why = f"{rows} packed rows of max_length tokens, on {gpus} GPU{'s' * (gpus > 1)} (dsrun import --gpus N)"
    run.give("global_batch_tokens", rows * run.values.get("max_length", 1), run.place, why)
