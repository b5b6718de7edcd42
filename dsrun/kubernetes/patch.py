"""--patch and k8s.patch: documents that change the objects of a job, each of them the kind that it names.

What dsrun needs of the objects stays as it was rendered; patch.toml has what that is, and why.

They are strategic merge patches, as `kubectl patch` applies them, to objects whose fields are those of api.json:
mappings are merged, lists whose items have a merge key by that key, and others replaced; null deletes a field. Of
directives there are `$patch` (replace, delete) and `$retainKeys`; those that only `kubectl apply` writes are refused.
The semantics are those of pkg/util/strategicpatch/patch.go of k8s.io/apimachinery."""

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate, json_beside, toml_beside
from dsrun.errors import UsageError, did_you_mean
from dsrun.kubernetes.objects import KubernetesObject
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.kubernetes.spec import rule_names
from dsrun.recipe.runfile import read_documents
from dsrun.system.yaml_nodes import yaml_text

_CONTENT = toml_beside(__file__)


def apply_patches(objects: Sequence[KubernetesObject], spec: KubernetesSpec, cwd: Path) -> list[str]:
    """Change the objects by the patches of a completed spec, and return what is to be noted.

    Raises UsageError for a file that cannot be read, a field that Kubernetes does not have, and a patch that takes away
    what dsrun needs."""
    rendered, notes, patches = _names(deepcopy(objects), spec), list[str](), list[str]()
    for entry in spec.patch:
        inline = entry.startswith("{")
        where, before = "--patch" if inline else f"--patch {entry}", deepcopy(objects)
        for document in read_documents(entry if inline else yaml_text(cwd / entry, where), where):
            _apply(objects, document, where)
            patches += _texts(document)
        if objects == before:
            notes.append(f"{where} changes nothing")
        names = _names(objects, spec, patches=patches, rendered=rendered)
        notes += [note for note in _broken_rules(names, rendered, where) if note not in notes]
    return notes


def _apply(objects: Sequence[KubernetesObject], document: Any, where: str) -> None:
    """Merge one document into the object of its kind."""
    kinds = _CONTENT["kinds"]
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        what = "a document without a kind" if kind is None else f"{kind} is none of the job's kinds"
        raise UsageError(f"{where}: {what}", fix=f"they are {', '.join(kinds)}")
    version = kinds[kind]["version"]
    if document.get("apiVersion", version) != version:
        raise UsageError(f"{where}: a {kind} is of apiVersion {version}")
    target = _target(objects, kind)
    if target is None:
        raise UsageError(f"{where}: no {kind} is rendered", fix=kinds[kind]["fix"])
    if "$patch" in document:
        raise UsageError(f"{where}: {kind}.$patch: the job needs its {kind}", fix="put it beside the fields to replace")
    change = {key: value for key, value in document.items() if key not in ("kind", "apiVersion")}
    new = merged(target, change, kinds[kind]["type"], f"{where}: {kind}")
    target.clear()
    target.update(new)


def _target(objects: Sequence[KubernetesObject], kind: str) -> KubernetesObject | None:
    """What a patch of a kind changes: the object, or the Job and its pods within another one."""
    for each in objects:
        spec = each["spec"]["template"]["spec"] if each["kind"] == "TrainingRuntime" else each.get("spec", {})
        job: KubernetesObject = spec["replicatedJobs"][0]["template"] if "replicatedJobs" in spec else each
        if kind == "Pod" and "completions" in job.get("spec", {}):
            found: KubernetesObject = job["spec"]["template"]
            return found
        if kind == each["kind"] or (kind == "Job" and job is not each):
            return job
    return None


def _names(objects: Sequence[KubernetesObject], spec: KubernetesSpec, **more: Any) -> SubjectNames:
    """What patch.toml names: the objects by their kinds, empty where there is none, and `more`."""
    targets = {kind.lower(): _target(objects, kind) or {} for kind in _CONTENT["kinds"]}
    return SubjectNames(spec, _CONTENT["terms"], **{**rule_names(), **targets, **more}, spec=spec)


def _broken_rules(names: SubjectNames, rendered: SubjectNames, where: str) -> Iterator[str]:
    """Notes; raises UsageError for the first thing that dsrun needs and that is no longer there."""
    for row in _CONTENT["kept"]:
        for key in row["keys"]:
            before, after = (evaluate(row["of"], each) for each in (rendered, names))
            if before.get(key) != after.get(key):
                raise UsageError(f"{where}: {row['field']}.{key}: {row['why']}", fix=row["fix"])
    for row in _CONTENT["rules"]:
        if evaluate(row["when"], names):
            message = row["message"].format_map(names)
            if "fix" not in row:
                yield message
            else:
                raise UsageError(f"{where}: {message}", fix=row["fix"])


def _texts(value: Any) -> Iterator[str]:
    """All texts within a value of YAML."""
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(each)


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
    take, a missing one, and a directive that is none."""
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
