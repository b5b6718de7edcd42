"""--patch and k8s.patch: documents that change the objects of a job, each of them the kind that it names.

What dsrun needs of the objects stays as it was rendered; patch.toml has what that is, and why.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.errors import UsageError
from dsrun.kubernetes.objects import KubernetesObject
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.kubernetes.spec import rule_names
from dsrun.kubernetes.strategic_merge import merged
from dsrun.recipe.runfile import read_documents
from dsrun.system.yaml_nodes import yaml_text

_CONTENT = toml_beside(__file__)


def apply_patches(objects: Sequence[KubernetesObject], spec: KubernetesSpec, cwd: Path) -> list[str]:
    """Change the objects by the patches of a completed spec, and return what is to be noted.

    Raises UsageError for a file that cannot be read, a field that Kubernetes does not have, and a patch that takes away
    what dsrun needs.
    """
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
