"""Write dsrun/recipe/hf_flags.json from the installed transformers' Seq2SeqTrainingArguments.

Only names, types, defaults and choices are taken. `--check` compares instead of writing and exits 3 when the
file differs. Run it again whenever the tested version of transformers moves.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal

TARGET = Path(__file__).resolve().parent.parent / "dsrun" / "recipe" / "hf_flags.json"
EXIT_DIFFERS = 3


def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union (None included), or the one type itself."""
    return typing.get_args(annotation) if _is_union(annotation) else (annotation,)


def _is_union(annotation: Any) -> bool:
    return isinstance(annotation, type(int | str)) or typing.get_origin(annotation) is typing.Union


def kind_of(annotation: Any, metadata: Mapping[str, Any]) -> str:
    """The type a command line or a YAML file can give the field, as one word.

    `bool|str` stands for a switch that also takes words (`--fsdp`, `--include_num_input_tokens_seen all`),
    `list|str` for a list where a single word means something else than a list of one (`--optim_target_modules
    all-linear`). HfArgumentParser itself sees a plain string in both and in `dict | str`.
    """
    found = [each for each in members(annotation) if each is not type(None)]
    origins = [typing.get_origin(each) or each for each in found]
    if list in origins:
        return "list|str" if str in origins else "list"
    if dict in origins or any(isinstance(each, type) and dataclasses.is_dataclass(each) for each in found):
        return "json"
    boolean = bool in origins or Literal in origins or metadata.get("nargs") == "?"
    if boolean and str in origins:
        return "bool|str"
    for scalar, word in ((bool, "bool"), (float, "float"), (int, "int")):
        if scalar in origins:
            return word
    return "str"


def choices_of(annotation: Any, metadata: Mapping[str, Any]) -> list[str] | None:
    """The closed set of values, in the package's own order, or None.

    An enum inside a list (`--debug`) is left out: its words are given in one string.
    """
    if "choices" in metadata:
        return [str(choice) for choice in metadata["choices"]]
    for each in members(annotation):
        if isinstance(each, type) and issubclass(each, Enum):
            return [str(member.value) for member in each]
    return None


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The field's default as a JSON value."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default.value if isinstance(field.default, Enum) else field.default


def harvest(arguments: type, version: str) -> dict[str, Any]:
    """The content of hf_flags.json for a dataclass of training arguments."""
    hints = typing.get_type_hints(arguments)
    flags = {
        field.name: {
            "type": kind_of(hints[field.name], field.metadata),
            "default": default_of(field),
            "choices": choices_of(hints[field.name], field.metadata),
            "optional": type(None) in members(hints[field.name]),
        }
        for field in dataclasses.fields(arguments)
        if field.init
    }
    return {"transformers": version, "flags": flags}


def render(content: Mapping[str, Any]) -> str:
    """Deterministic JSON: one flag a line, sorted by name, so that a new version gives a readable diff."""
    lines = [f"  {json.dumps(name)}: {json.dumps(flag)}" for name, flag in sorted(content["flags"].items())]
    body = ",\n".join(lines)
    return f'{{"transformers": {json.dumps(content["transformers"])},\n "flags": {{\n{body}\n }}\n}}\n'


def main(argv: list[str] | None = None) -> int:
    """Write or check the file; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 3 when the file differs")
    options = parser.parse_args(argv)

    import transformers

    text = render(harvest(transformers.Seq2SeqTrainingArguments, transformers.__version__))
    if options.check:
        same = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text
        sys.stderr.write(f"{TARGET.name}: {'up to date' if same else 'differs; run tools/harvest_hf_flags.py'}\n")
        return 0 if same else EXIT_DIFFERS
    scratch = TARGET.with_suffix(".tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
