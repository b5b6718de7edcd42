"""The session with NVML: what it makes of refusals, and that no other module opens the library."""

import re
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

import dsrun
from dsrun.machine.nvml import NvmlError, NvmlSession, nvml_session


def refuses(*_: object) -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


SESSION = NvmlSession(
    SimpleNamespace(NVMLError=pynvml.NVMLError, nvmlDeviceGetName=lambda handle: f"GPU {handle}", nvmlRefuses=refuses)
)


def test_answer_refusal_and_unknown_function():
    """What a GPU or an older pynvml does not know is None, for those who only ask."""
    assert SESSION.call("nvmlDeviceGetName", 3) == SESSION.ask("nvmlDeviceGetName", 3) == "GPU 3"
    with pytest.raises(NvmlError) as caught:
        SESSION.call("nvmlRefuses")
    assert caught.value.code == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert SESSION.ask("nvmlRefuses") is None
    assert SESSION.ask("nvmlOfTheFuture") is None


def test_library_is_closed_whatever_happens(monkeypatch):
    calls = []
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: calls.append("init"))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: calls.append("shutdown") or refuses())
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", refuses)
    with pytest.raises(NvmlError), nvml_session(), nvml_session() as inner:
        inner.call("nvmlDeviceGetCount")
    assert calls == ["init", "init", "shutdown", "shutdown"]


def test_without_driver(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlInit", refuses)
    with pytest.raises(NvmlError), nvml_session():
        pytest.fail("opened")


def test_only_one_module_opens_nvml():
    package = Path(dsrun.__file__).parent
    openers = [file for file in package.rglob("*.py") if re.search(r"import pynvml|nvmlInit", file.read_text())]
    assert [file.relative_to(package).as_posix() for file in openers] == ["machine/nvml.py"]
