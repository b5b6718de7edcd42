"""Loads extension modules of an installed or unpacked wheel, each in a fresh interpreter after torch.

A program of its own that needs nothing but Python, so that it can be sent to a node: `python - --site FOLDER MODULE …`.
Its last line on stdout is a JSON object. The package around a module is not imported: it may want packages that are
not the wheel's."""

import importlib.machinery
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

_SECONDS = 120
# Libraries that only register operators with torch have no PyInit function to import them by.
_LOAD = """
import ctypes, importlib.util, sys, torch
library, name = sys.argv[1:]
if hasattr(ctypes.CDLL(library), "PyInit_" + name.rpartition(".")[2]):
    spec = importlib.util.spec_from_file_location(name, library)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""


def main() -> None:
    """Print what became of each module."""
    modules, places = sys.argv[1:], [place for place in sys.path if place]
    if modules[:1] == ["--site"]:
        places, modules = [modules[1]], modules[2:]
    print(json.dumps({"ops": {name: load(name, places) for name in modules}}))


def load(name: str, places: list[str]) -> dict[str, object]:
    """`result` of module `name` ("loaded", "failed") with what was done; its library is below one of `places`."""
    began = time.monotonic()
    files = (
        f"{Path(place, *name.split('.'))}{end}" for place in places for end in importlib.machinery.EXTENSION_SUFFIXES
    )
    library = next((file for file in files if Path(file).exists()), None)
    why = loading_fails(library, name) if library else "it is not installed"
    facts = {"result": "failed", "what": why} if why else {"result": "loaded", "what": "loaded"}
    return {**facts, "seconds": round(time.monotonic() - began, 2)}


def loading_fails(library: str, name: str) -> str | None:
    """Why the library cannot be loaded; None when it can."""
    try:
        command = [sys.executable, "-c", _LOAD, library, name]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"not done within {_SECONDS} s"
    if done.returncode == -signal.SIGILL:
        return "SIGILL: compiled for a newer processor than this one"
    if done.returncode < 0:
        return f"its process died of {signal.Signals(-done.returncode).name}"
    return next(reversed(done.stderr.strip().splitlines()), "failed") if done.returncode else None


if __name__ == "__main__":
    main()
