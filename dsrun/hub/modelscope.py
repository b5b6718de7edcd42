"""Models and datasets from ModelScope: downloaded once per machine into its cache, then read as local folders."""

import errno
import logging
import os
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

from filelock import FileLock, Timeout

from dsrun.errors import DsrunError, MissingError, UsageError, did_you_mean, one_line
from dsrun.hub import modelscope_cache
from dsrun.hub.modelscope_cache import SETTINGS, WHOLE, ModelscopeAsset, complete
from dsrun.hub.reach import chain
from dsrun.models.folder import has_weights
from dsrun.recipe.preflight.data_files import FORMATS, suffix_of
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.recipe.trackers import MODELSCOPE
from dsrun.refusals import Refusals
from dsrun.runs.heartbeat import SignOfLife
from dsrun.system.terminal.display import NotePrinter
from dsrun.system.terminal.secrets import without_tokens

_TEXTS = Refusals(__file__, "refusals.toml")
_EXPLAINED = ("NotExistError", "AuthenticationError", "PermissionDeniedError", "FileIntegrityError")
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
"""In the order in which transformers looks for them; the first that a repository has are taken."""
_LARGE = re.compile(
    r".*\.(safetensors|bin|pt|pth|ckpt|h5|msgpack|ot|onnx|onnx_data|gguf|tflite|pb|mlmodel|npz|nemo|engine"
    r"|png|jpe?g|gif|webp|svg|pdf|mp4|mov|wav|mp3|zip|tar|gz)",
    re.IGNORECASE,
)
"""Weights in whatever format, pictures and archives: of a model the weights named above alone are read."""
_SAVED_DATASET = (".arrow",)
_WAIT_S = 1.0
_HEAD_START_S = 2.0


def fetch(spec: TrainSpec, *, notify: NotePrinter, beat: SignOfLife = lambda: None, local_rank: int = 0) -> None:
    """Have all that the run takes from ModelScope on this machine; without requests where it is there already.

    Of several processes that ask at once one downloads: as a rule local rank 0, whose notices are printed. `beat` is
    called while that goes on. Raises MissingError where ModelScope or access to it is missing, UsageError for a name or
    revision that it does not have."""
    cache = modelscope_cache.cache_of(os.environ, spec.cache_dir)
    assets = [each for each in modelscope_cache.assets_of(spec) if complete(each, cache) is None]
    if assets and local_rank:
        # So that local rank 0, whose notices are printed, takes the lock first.
        time.sleep(_HEAD_START_S)
    for asset in assets:
        obtain(asset, cache, token=spec.token, notify=notify, beat=beat)


def obtain(
    asset: ModelscopeAsset, cache: Path, *, token: str | None, notify: NotePrinter, beat: SignOfLife = lambda: None
) -> Path:
    """The folder with what is needed of `asset`."""
    found = complete(asset, cache)
    if found is not None:
        return found
    with _one_at_a_time(asset, cache, notify=notify, beat=beat):
        found = complete(asset, cache)
        if found is not None:
            return found
        try:
            return _download(asset, cache, token=token, notify=notify, beat=beat)
        except DsrunError:
            raise
        except Exception as error:
            copied = modelscope_cache.folder_of(asset, cache)
            if isinstance(error, ConnectionError) and _looks_complete(asset, copied):
                notify(f"ModelScope cannot be reached: the copy of {asset.name} in {copied} is used as it is")
                return copied
            raise explained(asset, error) from error


@contextmanager
def _one_at_a_time(asset: ModelscopeAsset, cache: Path, *, notify: NotePrinter, beat: SignOfLife) -> Iterator[None]:
    """No other process downloads the same; where no lock can be written, the package's own per file must do."""
    lock = FileLock(cache / ".lock" / f"dsrun-{asset.kind}-{asset.name.replace('/', '--')}.lock")
    waits = False
    with suppress(OSError, NotImplementedError):
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        while not lock.is_locked:
            try:
                lock.acquire(timeout=_WAIT_S)
            except Timeout:
                if not waits:
                    notify(f"another process is downloading {asset.name}; waiting for it")
                waits = True
                beat()
    try:
        yield
    finally:
        lock.release()


def _download(asset: ModelscopeAsset, cache: Path, *, token: str | None, notify: NotePrinter, beat: SignOfLife) -> Path:
    api, callback = _client(token)
    files = needed(asset, api.list_repo_files(asset.name, asset.kind, revision=asset.revision))
    size = sum(each.size for each in files)
    notify(f"downloading {asset.kind} {asset.name} from ModelScope: {len(files)} files, {_shown(size)}")
    folder = api.download_repo(
        asset.name,
        asset.kind,
        revision=asset.revision,
        cache_dir=str(cache),
        file_list=[{"Path": each.path, "Size": each.size, "Sha256": each.sha256} for each in files],
        progress_callbacks=[_progress(callback, size, notify, beat)],
    )
    modelscope_cache.record(asset, Path(folder), {each.path: each.size for each in files})
    return Path(folder)


def _client(token: str | None) -> tuple[Any, type]:
    """The package's client, quiet, and its base of progress callbacks."""
    try:
        from modelscope_hub import HubApi, ProgressCallback, _download
    except ImportError as error:
        raise MissingError(f"--hub modelscope needs the package {MODELSCOPE[0]}", fix=MODELSCOPE[1]) from error
    from tqdm import tqdm

    logging.getLogger("modelscope_hub").setLevel(logging.CRITICAL)
    # Its bars would fill the logs of the ranks; it has no switch for them.
    _download.tqdm = partial(tqdm, disable=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of MODELSCOPE_DOMAIN, which many set
        return HubApi(token=token), ProgressCallback


def _progress(base: type, total: int, notify: NotePrinter, beat: SignOfLife) -> type:
    """A class of callbacks, one object per file, in threads."""
    lock, done = Lock(), [0]

    class Progress(base):  # type: ignore[misc]
        def update(self, size: int) -> None:
            beat()
            with lock:
                before, done[0] = done[0], done[0] + size
                tenths = 10 * done[0] // max(total, 1)
                if total > 2**30 and tenths > 10 * before // total:
                    notify(f"downloaded {_shown(done[0])} of {_shown(total)}")

    return Progress


def needed(asset: ModelscopeAsset, listed: Sequence[Any]) -> list[Any]:
    """Of the files of a repository, each with a `path`, those that are read. Raises UsageError where there are none."""
    files = [each for each in listed if not each.is_dir and _is_inside(each.path)]
    if asset.kind == "model":
        weights = _weights(files) if asset.part != SETTINGS else []
        return [each for each in files if each in weights or not _LARGE.fullmatch(each.path)]
    folders = {each.path.partition("/")[0] for each in files if "/" in each.path}
    if asset.part != WHOLE:
        if asset.part not in folders:
            what = f"--dataset-config {asset.part}: dataset {asset.name} has no folder of that name"
            raise UsageError(what, fix=did_you_mean(asset.part, folders, None if folders else "leave it out"))
        files = [each for each in files if each.path.startswith(f"{asset.part}/")]
    data = [
        each
        for each in files
        if suffix_of(Path(each.path)) in FORMATS or PurePosixPath(each.path).suffix in _SAVED_DATASET
    ]
    if not data:
        raise UsageError(f"dataset {asset.name} on ModelScope holds no data files", fix=f"known: {', '.join(FORMATS)}")
    return data


def _weights(files: Sequence[Any]) -> list[Any]:
    for pattern in _WEIGHTS:
        if found := [each for each in files if fnmatch(each.path, pattern) and "/" not in each.path]:
            return found
    return []


def _is_inside(path: str) -> bool:
    """Whether a path that the server names stays in the folder; hidden files are never read."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and not any(part.startswith(".") for part in parts)


def _looks_complete(asset: ModelscopeAsset, folder: Path) -> bool:
    """Whether a folder without a record, as `modelscope download` leaves it, may hold everything."""
    if not folder.is_dir() or any(modelscope_cache.unfinished(folder)):
        return False
    if asset.kind == "dataset":
        return any(each.is_file() for each in folder.rglob("*"))
    return (folder / "config.json").is_file() and (asset.part == SETTINGS or has_weights(folder))


def explained(asset: ModelscopeAsset, error: Exception) -> DsrunError:
    """What the package raised, as one line. Raises it where the server or the disk refused this alone."""
    from modelscope_hub import errors

    failed = getattr(error, "failed_files", None)
    file = ""
    if failed:
        file, error = next(iter(failed.items()))
    *_, root = chain(error)  # the socket's own error, not four libraries' around it
    names = {
        "what": f"{asset.kind} {asset.name}{f': {file}' if file else ''}",
        "revision": f" at revision {asset.revision}" if asset.revision else "",
        "asked": "revision" if asset.revision else "name",
        "reason": without_tokens(one_line(root)),
        "status": getattr(error, "status_code", None),
        "endpoint": _endpoint(),
    }
    kinds = (each for each in _EXPLAINED if isinstance(error, getattr(errors, each)))
    number = errno.errorcode.get(getattr(error, "errno", None) or 0)
    _TEXTS.check("fetch", kind=next(kinds, ""), number=number, **names)
    return _TEXTS.error("server.answered" if names["status"] else "server.unreached", **names)


def _endpoint() -> str:
    for name in ("MODELSCOPE_ENDPOINT", "MODELSCOPE_DOMAIN"):
        if os.environ.get(name):
            return f"{name}={without_tokens(os.environ[name])}"
    return "ModelScope"


def _shown(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**29 else f"{size / 2**20:,.1f} MiB"
