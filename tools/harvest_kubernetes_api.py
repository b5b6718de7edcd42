"""Write dsrun/kubernetes/api.json: the fields of the objects that `dsrun render-k8s` patches, of Kubernetes' OpenAPI.

The source are the schemas of the installed kubernetes-validate, in its newest version. Only names, types and merge keys
are taken. A field's type is str, int, bool, float, quantity (a text or a number), int|str, any, or another type's name.
Of one that holds several, `{}TYPE` is a mapping, `[]TYPE` a list that a strategic merge replaces, `[key]TYPE` one whose
items it merges by that key, and `[=]TYPE` one to whose texts it adds. `!` at the end: the field must be there.

`--check` compares instead of writing and exits 3 when the file differs.
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate

TARGET = Path(__file__).resolve().parent.parent / "dsrun" / "kubernetes" / "api.json"
EXIT_DIFFERS = 3
ROOTS = ("io.k8s.api.batch.v1.Job", "io.k8s.api.core.v1.PersistentVolumeClaim", "io.k8s.api.core.v1.Service")
# What the API alone writes.
LEFT_OUT = {"status", "managedFields"}
SCALARS = {"string": "str", "integer": "int", "boolean": "bool", "number": "float", "object": "any"}
UNIONS = {"Quantity": "quantity", "IntOrString": "int|str", "Time": "str"}


def harvest(version: str) -> dict[str, Any]:
    """The types of one version by their short names."""
    folder = importlib.resources.files(kubernetes_validate) / "kubernetes-json-schema" / f"v{version}-local-strict"
    schemas = json.loads((folder / "_definitions.json").read_text())["$defs"]
    types: dict[str, dict[str, str]] = {}
    full: dict[str, str] = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        short = _short(name)
        assert full.setdefault(short, name) == name, f"two types are called {short}"
        if short in types:
            continue
        schema = schemas[name]
        required = set(schema.get("required", ()))
        fields = {key: each for key, each in schema.get("properties", {}).items() if key not in LEFT_OUT}
        types[short] = {key: _type(each) + "!" * (key in required) for key, each in fields.items()}
        waiting += [each for field in fields.values() for each in _references(field) if _short(each) not in UNIONS]
    return {"version": version, "types": dict(sorted(types.items()))}


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _inner(field: Mapping[str, Any]) -> Any:
    """What the values of a mapping or a list are; None for anything else."""
    return field.get("additionalProperties") or field.get("items")


def _references(field: Mapping[str, Any]) -> list[str]:
    reference = (_inner(field) or field).get("$ref")
    return [reference.rpartition("/")[2]] if reference else []


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        short = _short(field["$ref"])
        return UNIONS.get(short, short)
    (kind,) = {field["type"]} if isinstance(field["type"], str) else set(field["type"]) - {"null"}
    inner = _inner(field)
    if not inner:
        return SCALARS[kind]
    if kind == "object":
        return "{}" + _type(inner)
    merges = "merge" in field.get("x-kubernetes-patch-strategy", "")
    return f"[{field.get('x-kubernetes-patch-merge-key', '=') if merges else ''}]{_type(inner)}"


def text_of(content: dict[str, Any]) -> str:
    """One line a type."""
    lines = [f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in content["types"].items()]
    return f'{{"version": {json.dumps(content["version"])}, "types": {{\n' + ",\n".join(lines) + "\n}}\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args(argv).check
    text = text_of(harvest(kubernetes_validate.latest_version()))
    if check:
        return 0 if TARGET.exists() and TARGET.read_text() == text else EXIT_DIFFERS
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
