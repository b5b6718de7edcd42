"""Strategic merge patches, as `kubectl patch` applies them, to objects whose fields are those of api.json.

Mappings are merged, lists whose items have a merge key by that key, and others replaced; null deletes a field. Of
directives there are `$patch` (replace, delete) and `$retainKeys`; those that only `kubectl apply` writes are refused.
The semantics are those of pkg/util/strategicpatch/patch.go of k8s.io/apimachinery.
"""

import re
from typing import Any

from dsrun.datafiles import json_beside
from dsrun.errors import UsageError, did_you_mean

API = json_beside(__file__, "api.json")
_LIST = re.compile(r"\[(?P<key>[^]]*)\](?P<item>.+)")
_SCALARS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "int": ((int,), "a whole number"),
    "bool": ((bool,), "true or false"),
    "float": ((int, float), "a number"),
    "quantity": ((str, int, float), "an amount"),
    "int|str": ((int, str), "a whole number or a text"),
    "any": ((dict,), "a mapping"),
}


def merged(before: Any, patch: Any, kind: str, where: str) -> Any:
    """What a patch makes of a value of the type `kind` (see tools/harvest_kubernetes_api.py), which is left as it is.

    Raises UsageError, with the field below `where`, for one that Kubernetes does not have, a value that it does not
    take, a missing one, and a directive that is none.
    """
    kind = kind.rstrip("!")
    if found := _LIST.fullmatch(kind):
        if not isinstance(patch, list):
            raise UsageError(f"{where}: {patch!r} is not a list")
        if found["key"]:
            return _merged_list(before or [], patch, found["key"], found["item"], where)
        return [merged(None, each, found["item"], f"{where}[{at}]") for at, each in enumerate(patch)]
    if kind not in _SCALARS:
        return _merged_mapping(before or {}, patch, kind, where)
    types, what = _SCALARS[kind]
    if not isinstance(patch, types) or (isinstance(patch, bool) and kind != "bool"):
        fix = "quote it" if str in types and not isinstance(patch, dict | list) else None
        raise UsageError(f"{where}: {patch!r} is not {what}", fix=fix)
    return patch


def _merged_mapping(before: dict[str, Any], patch: Any, kind: str, where: str) -> dict[str, Any]:
    if not isinstance(patch, dict):
        raise UsageError(f"{where}: {patch!r} is not a mapping")
    directive, retained = patch.get("$patch", "merge"), patch.get("$retainKeys")
    if directive not in ("merge", "replace", "delete"):
        raise UsageError(f"{where}.$patch: {directive!r} is not one of replace, delete")
    result = dict(before) if directive == "merge" else {}
    if retained is not None:
        if not isinstance(retained, list) or any(key not in retained for key in patch if key[:1] != "$"):
            raise UsageError(f"{where}.$retainKeys: not a list with all keys of this patch", fix="name them all")
        result = {key: value for key, value in result.items() if key in retained}
    fields: dict[str, str] = API["types"].get(kind, {})
    for key, value in {} if directive == "delete" else patch.items():
        if key in ("$patch", "$retainKeys"):
            continue
        if not isinstance(key, str) or not (kind.startswith("{}") or key in fields):
            otherwise = "of directives there are $patch and $retainKeys" if str(key)[:1] == "$" else "kubectl explain"
            fix = did_you_mean(str(key), fields, otherwise)
            raise UsageError(f"{where}: Kubernetes {API['version']} has no field {key} here", fix=fix)
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value, fields.get(key, kind[2:]), f"{where}.{key}")
    missing = next((key for key, field in fields.items() if field.endswith("!") and key not in result), None)
    if missing and directive != "delete":
        raise UsageError(f"{where}: {missing} is missing")
    return result


def _merged_list(before: list[Any], patch: list[Any], key: str, item: str, where: str) -> list[Any]:
    """A list whose items are told apart by `key`; "=" for a list of texts."""
    if key == "=":
        texts = [merged(None, each, item, where) for each in patch]
        return _ordered([each for each in before if each not in texts], texts, before)
    changes: dict[str | int, Any] = {}
    for at, each in enumerate(patch):
        if each == {"$patch": "replace"}:
            before = []
        elif not isinstance(each, dict) or not isinstance(each.get(key), str | int):
            raise UsageError(f"{where}[{at}]: {key} is missing", fix="by it items of this list are told apart")
        elif each.get("$patch") == "replace":
            raise UsageError(f"{where}[{each[key]}].$patch: replace stands alone", fix="write - $patch: replace")
        elif each[key] in changes:
            raise UsageError(f"{where}[{each[key]}]: {key} {each[key]} is given twice", fix="give it once")
        else:
            changes[each[key]] = each
    items = {each[key]: each for each in before}
    given = [name for name, each in changes.items() if each.get("$patch") != "delete"]
    names = _ordered([name for name in items if name not in changes], given, list(items))
    items |= {name: merged(items.get(name), changes[name], item, f"{where}[{name}]") for name in given}
    return [items[name] for name in names]


def _ordered(others: list[Any], given: list[Any], before: list[Any]) -> list[Any]:
    """The order that the API makes: items of the patch as it has them, new ones before those that were there."""
    left, right, found = list(others), list(given), []
    while left and right:
        earlier = right[0] in before and before.index(left[0]) < before.index(right[0])
        found.append((left if earlier else right).pop(0))
    return found + left + right
