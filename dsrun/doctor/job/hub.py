"""The Hugging Face Hub, where the job needs it: token, gated models, offline mode, endpoint and proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.machine import Machine, Target
from dsrun.findings.finding import Finding
from dsrun.hub.modelscope_cache import NAME as MODELSCOPE
from dsrun.hub.reach import DATA_SET, Hub, downloads, hub_models, offline_by
from dsrun.hub.unreachable import OTHER_SOURCES
from dsrun.messages import Message, joined
from dsrun.models.folder import hub_home
from dsrun.recipe.recipe import Recipe

GATED = (
    "meta-llama/",
    "google/gemma",
    "google/medgemma",
    "google/paligemma",
    "CohereLabs/",
    "CohereForAI/",
    "bigcode/starcoder",
)
"""Beginnings of models' names on the Hub whose licence must be accepted there first, by their model cards."""
TIMEOUT_S = 1.0
_PUSH = Message("push the model")


def look(machine: Machine, target: Target) -> Iterator[Finding]:
    """Only what the job needs is asked for, and only whether the Hub can be reached, nothing else."""
    recipe = target.recipe
    if recipe is None:
        return
    missing = downloads(recipe, machine.environ)
    pushes = bool(recipe.hf.get("push_to_hub"))
    from_modelscope = recipe.spec.hub == MODELSCOPE
    if not missing and not pushes:
        if hub_models(recipe):
            place = "ModelScope" if from_modelscope else Message("the Hub")
            yield fine("hub", Message("all that the job takes from {place} is in its cache", place=place))
        return
    what = Message("download {names}", names=joined(", ", map(_named, missing))) if missing else _PUSH
    offline = None if from_modelscope else offline_by(machine.environ)
    if offline:
        fix: str = (
            Message("unset {offline}, or {otherwise}", offline=offline, otherwise=_elsewhere(missing))
            if missing
            else Message("unset {offline}, or leave --push_to_hub out", offline=offline)
        )
        yield failure(
            "hub_offline", Message("{offline} is set, and the job has to {what}", offline=offline, what=what), fix
        )
        return
    hub = Hub.of(recipe, machine.environ)
    if from_modelscope:
        fix = Message("where there is a network, with the same MODELSCOPE_CACHE: dsrun prepare")
        found = [*_reach(machine, hub, what=what, fix=fix)]
    else:
        fix = _elsewhere(missing) if missing else Message("push the model later: hf upload")
        found = [*_token(machine, recipe, missing), *_reach(machine, hub, what=what, fix=fix)]
    yield from found
    if not found:
        yield fine("hub", Message("{host} can be reached, to {what}", host=hub.host, what=what))


def _named(download: str) -> str:
    if download.startswith(DATA_SET):
        return Message("data set {name}", name=download.removeprefix(DATA_SET))
    return download


def token_of(machine: Machine, recipe: Recipe) -> str | None:
    """The access token that huggingface_hub would use: the flag's, the variable's, or that of `hf auth login`."""
    given = recipe.spec.token or recipe.hf.get("hub_token")
    for value in (given, machine.environ.get("HF_TOKEN"), machine.environ.get("HUGGING_FACE_HUB_TOKEN")):
        if value and value is not True and str(value).strip():
            return str(value)
    file = Path(machine.environ.get("HF_TOKEN_PATH") or hub_home(machine.environ) / "token")
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _token(machine: Machine, recipe: Recipe, missing: list[str]) -> Iterator[Finding]:
    token = token_of(machine, recipe)
    log_in = Message("hf auth login, or export HF_TOKEN=…")
    if token is not None and (token != token.strip() or any(sign.isspace() for sign in token)):
        yield failure(
            "hub_token_blank", Message("the Hub token has a blank or a line break in it: the Hub refuses it"), log_in
        )
    elif token is not None and not token.startswith(("hf_", "api_org_")):
        yield warning("hub_token_form", Message("the Hub token does not begin with hf_, as the Hub's do"), log_in)
    if token is None:
        gated = [name for name in missing if name.startswith(GATED)]
        if gated:
            page = f"https://huggingface.co/{gated[0]}"
            yield failure(
                "hub_gated",
                Message("{model} is gated, and there is no access token", model=gated[0]),
                Message("accept its licence at {page}, then {log_in}", page=page, log_in=log_in),
            )
        elif recipe.hf.get("push_to_hub"):
            yield failure("hub_token_missing", Message("--push_to_hub needs an access token that may write"), log_in)


def _reach(machine: Machine, hub: Hub, *, what: str, fix: str) -> Iterator[Finding]:
    """Whether the hub can be reached; `fix` is what else helps."""
    if hub.invalid:
        yield failure(
            "hub_endpoint", hub.invalid, Message("unset it, or export {variable}=https://HOST", variable=hub.variable)
        )
        return
    problem = hub.unreached(machine.environ, lambda name, port: machine.network.reachable(name, port, TIMEOUT_S))
    if problem:
        yield failure(
            "hub_unreachable", Message("{problem}, and the job has to {what}", problem=problem, what=what), fix
        )


def _elsewhere(missing: list[str]) -> str:
    """How to get the first that is missing where this machine's network does not reach."""
    name = missing[0].removeprefix(DATA_SET)
    kind = " --repo-type dataset" if missing[0].startswith(DATA_SET) else ""
    return Message(
        "use {others}, or where there is a network, into the same HF_HOME: {command}; then export HF_HUB_OFFLINE=1",
        others=OTHER_SOURCES,
        command=f"hf download {name}{kind}",
    )


HUB = Check(
    "hub",
    "Hugging Face Hub",
    look,
    needs="needs a job that takes something from the Hub, or pushes to it",
    finds="offline without the model in the cache; no token for a gated model or a push; a Hub that cannot be reached",
)
