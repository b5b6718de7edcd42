"""A session with NVIDIA's driver: the one place that opens and closes NVML, its library."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any


class NvmlError(Exception):
    """NVML refuses, or is not there: `code` is its nvmlReturn_t."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class NvmlSession:
    """NVML while it is open; `pynvml` has its constants and structures."""

    pynvml: Any

    def call(self, name: str, *arguments: Any) -> Any:
        """What the function `name` of NVML returns. Raises NvmlError."""
        try:
            return getattr(self.pynvml, name)(*arguments)
        except self.pynvml.NVMLError as error:
            raise NvmlError(int(error.value), str(error)) from error

    def ask(self, name: str, *arguments: Any) -> Any:
        """As `call`; None for what this GPU does not know, or an older driver or pynvml has not."""
        with suppress(NvmlError, AttributeError):
            return self.call(name, *arguments)
        return None


@contextmanager
def nvml_session() -> Iterator[NvmlSession]:
    """NVML, opened; sessions may be nested. Raises NvmlError without a driver that answers."""
    import pynvml

    session = NvmlSession(pynvml)
    session.call("nvmlInit")
    try:
        yield session
    finally:
        session.ask("nvmlShutdown")
