"""The arguments of a Trainer from training_args.bin, a pickle: nothing that it names is imported or run."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

from dsrun.system.files import open_regular

_LONGEST = 4 << 20
"""Bytes; those of a run have some thousands."""


class _Inert(dict[str, Any]):
    """Stands for an object of any class, by its attributes; `given` is what it was made of."""

    given: tuple[Any, ...] = ()

    def __init__(self, *given: Any, **_: Any) -> None:
        self.given = given

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.update(state)


class _InertUnpickler(pickle._Unpickler):
    """Takes a class that does nothing for whatever the pickle looks up. In Python: that in C makes as much room as a
    hostile pickle asks for."""

    def find_class(self, _: str, name: str) -> type:
        return type(name, (_Inert,), {})

    def persistent_load(self, _: Any) -> None:
        return None  # a tensor


def read_arguments(folder: Path) -> dict[str, Any]:
    """Its values by name, with the name of its class as "class"; the value of an enumeration stands for its member.
    {} where there is none that can be read."""
    try:
        with open_regular(folder / "training_args.bin") as stream, zipfile.ZipFile(stream) as archive:
            member = next(each for each in archive.infolist() if each.filename.endswith("/data.pkl"))
            with archive.open(member) as pickled:
                found = _InertUnpickler(pickled).load() if member.file_size < _LONGEST else {}
        members = {name: each.given[0] for name, each in found.items() if isinstance(each, _Inert) and each.given}
        return {**found, **members, "class": type(found).__name__} if isinstance(found, _Inert) else {}
    except Exception:  # a damaged or hostile pickle fails in any way, and there are other sources
        return {}
