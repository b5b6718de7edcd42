"""The Hub: errors of models and datasets that cannot be fetched, and code that comes with a model.

transformers copies a model's own code (--trust-remote-code) over what is there, and imports it right after. The ranks
of a machine do so at the same moment, and one would import what another has just emptied to write it again.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from transformers import dynamic_module_utils

from dsrun.errors import MissingError

HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""What the HTTP client raises and `datasets` lets through; releases of the Hub package differ in the client."""

NO_NETWORK = (ConnectionError, TimeoutError, socket.gaierror, LocalEntryNotFoundError)
ABSENT_FILE = "does not appear to have a file named"

LOCK = ".dsrun.lock"


def is_unreachable(error: BaseException) -> bool:
    """Whether `error` comes of a network that is not there, or of HF_HUB_OFFLINE with nothing in the cache.

    The libraries wrap what the HTTP client said once or twice, each release in other types; at the bottom there is
    Python's own ConnectionError, or the Hub client's word that it looked into its cache in vain.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, NO_NETWORK):
            return True
        # Also behind `raise … from None`, by which httpx2 hides the socket's own error.
        seen = seen.__cause__ or seen.__context__
    # Offline, transformers finds no weights in the cache and says that the repository has none.
    return constants.HF_HUB_OFFLINE and isinstance(error, OSError) and ABSENT_FILE in str(error)


def unreachable(what: str, reason: str, *, instead: str) -> MissingError:
    """The error for `what` ("model x"); `instead` names the flag that takes local files."""
    offline = ", unset HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else ""
    return MissingError(
        f"{what} cannot be fetched from the Hub: {reason}",
        fix=f"check the network{offline}, or give local files: {instead}",
        cause="hf_gated_or_offline",
    )


@contextmanager
def one_at_a_time(trusted: bool) -> Iterator[None]:
    """Nobody else on this machine copies code in here; without `trusted` there is none to copy.

    Where nothing can be written there is no lock, and no need of one: the code is in its place, or transformers fails.
    """
    with ExitStack() as stack:
        if trusted:
            folder = Path(dynamic_module_utils.HF_MODULES_CACHE)
            # filelock raises NotImplementedError on a file system without flock(2).
            with suppress(OSError, NotImplementedError):
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(folder / LOCK))
        yield


def reference_in(config: Any, auto_class: type) -> str | None:
    """Which class of the model's own code `auto_class` stands for, as its config says; None for one of transformers."""
    return (getattr(config, "auto_map", None) or {}).get(auto_class.__name__)


class OwnCode:
    """Loads the code alone, by the name that all of transformers' classes have for it."""

    @staticmethod
    def from_pretrained(name: str, *, reference: str, **options: Any) -> type:
        return dynamic_module_utils.get_class_from_dynamic_module(reference, name, **options)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
