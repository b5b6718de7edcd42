"""What a job downloads from its hub, and whether that hub can be reached: asked before ranks wait minutes for it.

And what is said where the Hugging Face Hub does not give it, and where else it can be taken from."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from dsrun.errors import MissingError, UsageError
from dsrun.findings.finding import text_of
from dsrun.hub import modelscope_cache
from dsrun.messages import Message
from dsrun.models.folder import cached_snapshot, hub_cache
from dsrun.recipe.mixture import specs_of
from dsrun.recipe.preflight.files import DEMO_MODELS, is_path
from dsrun.recipe.recipe import Recipe
from dsrun.runs.attempts import is_another
from dsrun.system.net import reachable
from dsrun.system.terminal.secrets import without_tokens

DATA_SET = "data set "
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
CONNECT_S = 5.0
_TRUE = {"1", "ON", "YES", "TRUE"}  # huggingface_hub/constants.py, ENV_VARS_TRUE_VALUES


@dataclass(frozen=True, kw_only=True)
class HubAddress:
    """A hub by its address, which `variable` sets."""

    variable: str
    address: str

    @classmethod
    def of(cls, recipe: Recipe, environ: Mapping[str, str]) -> Self:
        """The one that the job's models and data come from."""
        if recipe.spec.hub != modelscope_cache.NAME:
            return cls(variable=ENDPOINT, address=environ.get(ENDPOINT) or "https://huggingface.co")
        name = next((name for name in ("MODELSCOPE_ENDPOINT", "MODELSCOPE_DOMAIN") if environ.get(name)), "")
        # modelscope_hub/constants.py, DEFAULT_ENDPOINT; its variables may leave the scheme out.
        address = environ.get(name) or "https://modelscope.cn"
        return cls(
            variable=name or "MODELSCOPE_ENDPOINT", address=address if "://" in address else f"https://{address}"
        )

    @property
    def host(self) -> str:
        return urlsplit(self.address).hostname or ""

    @property
    def invalid(self) -> str | None:
        """What is wrong with the address itself."""
        if urlsplit(self.address).scheme in ("http", "https") and self.host:
            return None
        return text_of("hub_source.no_address", variable=self.variable, address=without_tokens(self.address))

    def unreached(self, environ: Mapping[str, str], connects: Callable[[str, int], bool]) -> str | None:
        """ "HOST cannot be reached", where neither it nor the proxy before it takes a connection."""
        scheme = urlsplit(self.address).scheme
        proxy = _proxy(environ, scheme, self.host)
        place = urlsplit(self.address if not proxy else proxy if "://" in proxy else f"http://{proxy}")
        name, port = place.hostname or "", _port(place.geturl(), 443 if place.scheme == "https" else 80)
        if name and connects(name, port):
            return None
        if not proxy:
            return text_of("hub_source.unreached", host=self.host)
        return text_of("hub_source.behind_proxy", host=self.host, proxy=f"{name}:{port}", scheme=scheme)


def check_hub(recipe: Recipe, environ: Mapping[str, str]) -> None:
    """Raise MissingError where something has to be downloaded and the hub takes no connection, UsageError for an
    address that is none. A requeued job goes on trying."""
    missing = downloads(recipe, environ)
    from_modelscope = recipe.spec.hub == modelscope_cache.NAME
    if not missing or is_another(environ) or (not from_modelscope and offline_by(environ)):
        return
    hub = HubAddress.of(recipe, environ)
    if hub.invalid:
        raise UsageError(hub.invalid, fix=f"unset it, or export {hub.variable}=https://HOST")
    problem = hub.unreached(environ, lambda host, port: reachable(host, port, CONNECT_S))
    if problem:
        local = "--train-file FILE" if missing[0].startswith(DATA_SET) else "--model DIR"
        other = f"set {hub.variable}" if from_modelscope else f"use {other_sources()}"
        what = f"{problem}, to download {', '.join(missing)}"
        raise MissingError(what, fix=f"check the network, or {other}, or local files: {local}", cause=CAUSE)


def downloads(recipe: Recipe, environ: Mapping[str, str]) -> list[str]:
    """What the job needs by name that is not in the cache, each dataset as "data set NAME"."""
    if recipe.spec.hub != modelscope_cache.NAME:
        return [*_from_hub(recipe, environ)]
    cache = modelscope_cache.cache_of(environ, recipe.spec.cache_dir)
    absent = (each for each in modelscope_cache.assets_of(recipe.spec) if not modelscope_cache.complete(each, cache))
    return [f"{DATA_SET if each.kind == 'dataset' else ''}{each.name}" for each in absent]


def _from_hub(recipe: Recipe, environ: Mapping[str, str]) -> Iterator[str]:
    cache = Path(recipe.spec.cache_dir).expanduser() if recipe.spec.cache_dir else hub_cache(environ)
    for name in hub_models(recipe):
        if cached_snapshot(name, cache) is None:
            yield name
    for each in specs_of(recipe.spec).values():
        dataset = each.dataset
        folder = f"datasets--{(dataset or '').replace('/', '--')}"
        if dataset and not is_path(dataset) and not any(cache.glob(f"{folder}/snapshots/*")):
            yield f"{DATA_SET}{dataset}"


def hub_models(recipe: Recipe) -> list[str]:
    """The models that the job takes from its hub by name."""
    spec = recipe.spec
    names = [spec.model, spec.teacher, spec.tokenizer, spec.config_name]
    models = [name for name in names if name and name not in DEMO_MODELS and not is_path(name)]
    return list(dict.fromkeys(models))


def offline_by(environ: Mapping[str, str]) -> str | None:
    """The variable that forbids requests to the Hub."""
    return next((name for name in OFFLINE if (environ.get(name) or "").upper() in _TRUE), None)


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


CAUSE = "hf_gated_or_offline"
ENDPOINT = "HF_ENDPOINT"
LOG_IN = "`hf auth login`, and accept its licence on its page"


def other_sources() -> Message:
    """Beside local files; of the cause in dsrun/diagnosis/rules.toml, too."""
    return text_of("hub_source.others", variable=ENDPOINT)


def unreachable(what: str, reason: str, *, instead: str, offline: bool) -> MissingError:
    """The error for `what` ("model x"); `instead` names the flag that takes local files."""
    first = "unset HF_HUB_OFFLINE" if offline else "check the network"
    return MissingError(
        f"{what} cannot be fetched from the Hub: {reason}",
        fix=f"{first}, or use {other_sources()}, or local files: {instead}",
        cause=CAUSE,
    )


def refused(what: str, error: BaseException, environ: Mapping[str, str], *, instead: str) -> MissingError | None:
    """The error for an answer of the Hub or of a mirror that is about access, load or a failure, or that is not the
    Hub's own; None where there was no answer, or one about the repository, which the library explains itself."""
    response = next((found for each in chain(error) if (found := getattr(each, "response", None)) is not None), None)
    status = getattr(response, "status_code", None)
    if response is None or status is None or status < 400:
        return None
    gated = any(type(each).__name__ == "GatedRepoError" for each in chain(error))
    # A code in this header is the Hub's explanation, "RepoNotFound" for example.
    if not gated and status in (401, 404) and response.headers.get("X-Error-Code"):
        return None
    fix = LOG_IN if status in (401, 403) else f"try again later, or use {other_sources()}, or local files: {instead}"
    if status == 404:
        fix = f"check the name and {ENDPOINT}, or use --hub modelscope, or local files: {instead}"
    address = environ.get(ENDPOINT)
    source = f"{ENDPOINT}={without_tokens(address)}" if address else "the Hub"
    message = f"{what}: {source} answered {status} for {without_tokens(str(response.url))}"
    return MissingError(message, fix=fix, cause=CAUSE)


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it comes of. The libraries wrap it once or twice, each release in other types."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        # Also behind `raise … from None`, by which httpx2 hides the socket's own error.
        seen = seen.__cause__ or seen.__context__
