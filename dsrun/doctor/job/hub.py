"""The Hugging Face Hub, where the job needs it: token, gated models, offline mode, endpoint and proxy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.machine import Machine, Target
from dsrun.findings import Finding, Message, joined
from dsrun.hub import modelscope_cache
from dsrun.hub.unreachable import ENDPOINT, OTHER_SOURCES
from dsrun.recipe.mixture import specs_of
from dsrun.recipe.preflight.files import DEMO_MODELS, is_path
from dsrun.recipe.recipe import Recipe
from dsrun.system.display import without_tokens
from dsrun.zero.memory.model.configs import cached_snapshot, hub_cache

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
HUB_ADDRESS = "https://huggingface.co"
MODELSCOPE_ADDRESS = "https://modelscope.cn"  # modelscope_hub/constants.py, DEFAULT_ENDPOINT
TIMEOUT_S = 1.0
_DATA_SET = "data set "
_PUSH = Message("push the model")
_TRUE = {"1", "ON", "YES", "TRUE"}  # huggingface_hub/constants.py, ENV_VARS_TRUE_VALUES


def look(machine: Machine, target: Target) -> Iterator[Finding]:
    """Only what the job needs is asked for, and only whether the Hub can be reached, nothing else."""
    recipe = target.recipe
    if recipe is None:
        return
    if recipe.spec.hub == modelscope_cache.NAME:
        yield from _modelscope(machine, recipe)
        return
    missing = list(_downloads(machine, recipe))
    pushes = bool(recipe.hf.get("push_to_hub"))
    if not missing and not pushes:
        if not _on_hub(recipe):
            return
        yield fine("hub", Message("all that the job takes from the Hub is in its cache"))
        return
    what = Message("download {names}", names=joined(", ", map(_named, missing))) if missing else _PUSH
    offline = next(
        (name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if _on(machine.environ.get(name))), None
    )
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
    address = machine.environ.get(ENDPOINT) or HUB_ADDRESS
    fix = _elsewhere(missing) if missing else Message("push the model later: hf upload")
    found = [*_token(machine, recipe, missing), *_reach(machine, ENDPOINT, address, what=what, fix=fix)]
    yield from found
    if not found:
        yield fine("hub", Message("{host} can be reached, to {what}", host=urlsplit(address).hostname, what=what))


def _modelscope(machine: Machine, recipe: Recipe) -> Iterator[Finding]:
    """The same for a job that takes its models and data from ModelScope."""
    assets = modelscope_cache.assets_of(recipe.spec)
    cache = modelscope_cache.cache_of(machine.environ, recipe.spec.cache_dir)
    missing = [each.name for each in assets if modelscope_cache.complete(each, cache) is None]
    if not missing:
        if assets:
            yield fine("hub", Message("all that the job takes from ModelScope is in its cache"))
        return
    what = Message("download {names}", names=", ".join(missing))
    environ = machine.environ
    address = environ.get("MODELSCOPE_ENDPOINT") or environ.get("MODELSCOPE_DOMAIN") or MODELSCOPE_ADDRESS
    if "://" not in address:
        address = f"https://{address}"
    fix = Message("where there is a network, with the same MODELSCOPE_CACHE: dsrun prepare")
    found = [*_reach(machine, "MODELSCOPE_ENDPOINT", address, what=what, fix=fix)]
    yield from found
    if not found:
        yield fine("hub", Message("{host} can be reached, to {what}", host=urlsplit(address).hostname, what=what))


def _on(value: str | None) -> bool:
    return (value or "").upper() in _TRUE


def _on_hub(recipe: Recipe) -> list[str]:
    """The models and data sets that the job takes from the Hub by name."""
    spec = recipe.spec
    names = [spec.model, spec.tokenizer, spec.config_name]
    models = [name for name in names if name and name not in DEMO_MODELS and not is_path(name)]
    return list(dict.fromkeys(models))


def _downloads(machine: Machine, recipe: Recipe) -> Iterator[str]:
    """What of it is not in the cache."""
    cache = Path(recipe.spec.cache_dir).expanduser() if recipe.spec.cache_dir else hub_cache(machine.environ)
    for name in _on_hub(recipe):
        if cached_snapshot(name, cache) is None:
            yield name
    for each in specs_of(recipe.spec).values():
        dataset = each.dataset
        if dataset and not is_path(dataset) and not any(cache.glob(f"{_folder_of(dataset)}/snapshots/*")):
            yield f"{_DATA_SET}{dataset}"


def _named(download: str) -> str:
    if download.startswith(_DATA_SET):
        return Message("data set {name}", name=download.removeprefix(_DATA_SET))
    return download


def _folder_of(dataset: str) -> str:
    return f"datasets--{dataset.replace('/', '--')}"


def token_of(machine: Machine, recipe: Recipe) -> str | None:
    """The access token that huggingface_hub would use: the flag's, the variable's, or that of `hf auth login`."""
    given = recipe.spec.token or recipe.hf.get("hub_token")
    for value in (given, machine.environ.get("HF_TOKEN"), machine.environ.get("HUGGING_FACE_HUB_TOKEN")):
        if value and value is not True and str(value).strip():
            return str(value)
    home = machine.environ.get("HF_HOME") or f"{_cache_home(machine.environ)}/huggingface"
    file = Path(machine.environ.get("HF_TOKEN_PATH") or f"{home}/token")
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _cache_home(environ: Mapping[str, str]) -> str:
    return environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")


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


def _reach(machine: Machine, variable: str, address: str, *, what: str, fix: str) -> Iterator[Finding]:
    """Whether `address`, which `variable` sets, can be reached; `fix` is what else helps."""
    scheme, host = urlsplit(address).scheme, urlsplit(address).hostname or ""
    if scheme not in ("http", "https") or not host:
        yield failure(
            "hub_endpoint",
            Message("{variable}={address} is not an address", variable=variable, address=without_tokens(address)),
            Message("unset it, or export {variable}=https://HOST", variable=variable),
        )
        return
    proxy = _proxy(machine.environ, scheme, host)
    name, port = host, _port(address, 443 if scheme == "https" else 80)
    if proxy:
        found = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        name, port = found.hostname or "", _port(found.geturl(), 443 if found.scheme == "https" else 80)
    if not name or not machine.network.reachable(name, port, TIMEOUT_S):
        if proxy:
            fix = Message("check {scheme}_proxy; {fix}", scheme=scheme, fix=fix)
        yield failure(
            "hub_unreachable",
            Message(
                "{host} cannot be reached through the proxy {proxy}, and the job has to {what}"
                if proxy
                else "{host} cannot be reached, and the job has to {what}",
                host=host,
                proxy=f"{name}:{port}",
                what=what,
            ),
            fix,
        )


def _elsewhere(missing: list[str]) -> str:
    """How to get the first that is missing where this machine's network does not reach."""
    name = missing[0].removeprefix(_DATA_SET)
    kind = " --repo-type dataset" if missing[0].startswith(_DATA_SET) else ""
    return Message(
        "{others}; or where there is a network, into the same HF_HOME: {command}; then export HF_HUB_OFFLINE=1",
        others=OTHER_SOURCES,
        command=f"hf download {name}{kind}",
    )


def _port(address: str, default: int) -> int:
    try:
        return urlsplit(address).port or default
    except ValueError:
        return default


def _proxy(environ: Mapping[str, str], scheme: str, host: str) -> str | None:
    """The proxy that requests to `host` go through, by the variables that all programs read."""
    for excepted in (environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(","):
        name = excepted.strip().lstrip(".")
        if name == "*" or (name and (host == name or host.endswith(f".{name}"))):
            return None
    for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY"):
        if environ.get(name):
            return environ[name]
    return None


HUB = Check(
    "hub",
    "Hugging Face Hub",
    look,
    needs="needs a job that takes something from the Hub, or pushes to it",
    finds="offline without the model in the cache; no token for a gated model or a push; a Hub that cannot be reached",
)
