"""An unreachable Hub, distinguished from all other failures of loading."""

from __future__ import annotations

import socket

import pytest
from huggingface_hub import get_session
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from dsrun.errors import MissingError
from dsrun.train.model import load as model


def wrapped(inner: BaseException) -> OSError:
    """What transformers makes of what the Hub's client raised."""
    try:
        try:
            raise inner
        except BaseException as error:
            raise OSError("We couldn't connect, and couldn't find them in the cached files.") from error
    except OSError as outer:
        return outer


def test_hub_connection_refused_is_unreachable():
    """A real request, to a port of this machine that nobody listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(model.HTTP_ERROR) as caught:
            get_session().get(f"http://127.0.0.1:{held.getsockname()[1]}/")
    assert model.is_unreachable(caught.value)
    assert model.is_unreachable(wrapped(caught.value))


@pytest.mark.parametrize(
    "inner", [LocalEntryNotFoundError("not cached"), OfflineModeIsEnabled("offline"), TimeoutError("slow")]
)
def test_hub_unreachable_errors(inner):
    """What the network or an empty cache raises."""
    assert model.is_unreachable(wrapped(inner))


@pytest.mark.parametrize(
    "error", [wrapped(ValueError("Repo id must use alphanumeric chars")), OSError("not a valid JSON file")]
)
def test_other_errors_are_not_hub_unreachable(error):
    assert not model.is_unreachable(error)


def test_uncached_weights_unreachable_only_when_offline(monkeypatch):
    """Weights that are not cached are missing only when offline."""
    error = OSError("org/m does not appear to have a file named pytorch_model.bin or model.safetensors.")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert not model.is_unreachable(error)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert model.is_unreachable(error)


def test_hub_unreachable_message(monkeypatch):
    """The line names what is missing, and the flag for local files."""
    refused = ConnectionError("Connection refused. Check your internet connection or see …")
    for offline, first in ((False, "check the network"), (True, "unset HF_HUB_OFFLINE")):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        error = model.not_fetched("model x", refused, instead="--model DIR")
        assert isinstance(error, MissingError)
        assert str(error) == (
            "model x cannot be fetched from the Hub: Connection refused."
            f" ({first}, or use a mirror by HF_ENDPOINT=URL, --hub modelscope, or local files: --model DIR)"
        )
    assert model.not_fetched("model x", ValueError("not a valid JSON file"), instead="--model DIR") is None
