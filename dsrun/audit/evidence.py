"""What a finished run of anybody has left: versions, arguments, configs, logged steps, logs. Nothing of it is run.

The arguments of a Trainer come from training_args.bin, a pickle: nothing that it names is imported. Logs tell values
and signs by the names of log.toml, the last steps, and causes."""

import pickle
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ahocorasick_rs

from dsrun.checkpoints import weights
from dsrun.datafiles import patterns_beside, toml_beside
from dsrun.diagnosis.diagnose import of_logs
from dsrun.diagnosis.log.reading import LOG, logs_below, read_log
from dsrun.errors import DsrunError, UsageError
from dsrun.models.headers import read_header
from dsrun.monitoring.trainer_logs.status import LogReader
from dsrun.runs.folder import RunFolder, is_run
from dsrun.runs.records import iter_records, revive, whole
from dsrun.system.files import open_regular, parse_json, read_object

LOG_PATTERNS = patterns_beside(__file__, "log.toml", flags=re.MULTILINE)
"""What is looked for in logs, by name: the value of the last one with a group, and whether one without is there."""
# What a pattern begins with: letters and escaped signs, but not one that may come repeatedly.
_LITERAL = re.compile(r"(?:(?:[^\\\[\](){}.*+?^$|]|\\\W)(?![*+?{]))+")
_WORDS = {name: re.sub(r"\\(\W)", r"\1", _LITERAL.match(each.pattern)[0]) for name, each in LOG_PATTERNS.items()}  # type: ignore[index]
_WINDOW, _LISTS = 400, 1 << 17
"""Bytes from its first words in which a pattern ends, and one that reads the names of weights."""
_CAUSES = 4 << 20
_STEPS = 1 << 18
"""Bytes at the end of a log in which causes and steps are looked for: what ended a run, and the last thousand steps."""


class LogEvidence(NamedTuple):
    """`facts` by name, the logged `steps` of the first log that has some, and the `causes` that `dsrun diagnose` finds,
    None where no log was read."""

    facts: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    causes: frozenset[str] | None


def read_logs(logs: Sequence[Path], *, strict: bool) -> LogEvidence:
    """What `logs` tell. One that cannot be read, is no text or empty, raises UsageError or MissingError where `strict`,
    and else tells nothing."""
    facts: dict[str, Any] = {}
    ends: dict[str, bytes] = {}
    for log in logs:
        with suppress(*(() if strict else (DsrunError,))):
            ends[str(log)] = _read(log, facts)
    if not ends:
        return LogEvidence({}, (), None)
    signs = {name: False for name, pattern in LOG_PATTERNS.items() if not pattern.groups}
    causes = frozenset(each.code for each in of_logs(ends).findings)
    steps = (_steps(Path(name), end[-_STEPS:]) for name, end in ends.items())
    return LogEvidence(signs | facts, next(filter(None, steps), ()), causes)


def _read(log: Path, facts: dict[str, Any]) -> bytes:
    """The end of a log, of which `facts` are told."""
    end = b""
    for data, limit in read_log(log, str(log)):
        end = (end + data[:limit])[-_CAUSES:]
        # What is there need not be looked for again.
        open_names = tuple(name for name in LOG_PATTERNS if facts.get(name) is not True)
        for index, begin, _ in _automaton(open_names).find_matches_as_indexes(data, overlapping=True):
            name = open_names[index]
            if begin < limit and facts.get(name) is not True:
                window = _LISTS if name.startswith("missing") else _WINDOW
                text = data[begin : begin + window].decode(errors="replace")
                if found := LOG_PATTERNS[name].match(text):
                    facts[name] = (int(found[1]) if found[1].isdigit() else found[1]) if found.re.groups else True
    if not end.strip():
        raise UsageError(f"{log} is empty", fix="give the log of a run")
    return end


@cache
def _automaton(names: tuple[str, ...]) -> Any:
    return ahocorasick_rs.BytesAhoCorasick([_WORDS[name].encode() for name in names])


def _steps(log: Path, end: bytes) -> Sequence[Mapping[str, Any]]:
    reader = LogReader(log)
    reader.feed(end, now=None)
    reader.end()
    return [each for each in reader.log.steps if "loss" in each]


_PLACES = toml_beside(__file__)
_VERSIONS = patterns_beside(__file__, flags=re.MULTILINE)
_LARGEST_JSON = 1 << 18
"""Bytes of a DeepSpeed JSON; data may lie beside it."""
_PIECE = 1 << 16
_DEEPEST = 4
"""Folders that runs lie in below the one that is named: PROJECT/MODEL/DATE/RUN."""


def runs_in(path: Path) -> list[Path]:
    """What is to be audited: a log, a run's folder, or each run below a folder. Raises UsageError without one."""
    if path.is_file() or _is_one(path):
        return [path]
    if found := sorted(_below(path, _DEEPEST)) or _lone_logs(path):
        return found
    what = "contains no run, checkpoint or log" if path.is_dir() else "does not exist"
    raise UsageError(f"{path} {what}", fix="name a run's folder, a checkpoint or a log")


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """The runs below a folder; what lies in a run belongs to it."""
    for each in folder.glob("*/") if depth else ():
        yield from [each] if _is_one(each) else _below(each, depth - 1)


def _lone_logs(folder: Path) -> list[Path]:
    lists = _PLACES["freezes"]
    return [each for each in logs_below(folder) if not any(map(each.match, lists))] if folder.is_dir() else []


def _is_one(folder: Path) -> bool:
    marks = (next(folder.glob(mark), None) for mark in _PLACES["marks"])
    return is_run(folder) or any(marks) or bool(_deepspeed_json(folder, None))


def evidence_of(path: Path, *, strict: bool = True) -> dict[str, Any]:
    """What the run at `path`, a folder or a log, has left, by the names of its sources, which facts.toml explains.
    A log that cannot be read, is no text or empty raises UsageError where `strict`, and else tells nothing."""
    own = RunFolder(path)
    # The folder itself, what it holds of models, and its checkpoints, the newest first.
    places = (path, own.model, own.adapter, *(each for _, each in own.checkpoints()))
    folders = [each for each in places if each.is_dir()]
    place = path if folders else path.parent
    logs = read_logs(_logs(path) if folders else [path], strict=strict and not folders)
    read = {name: [read_object(each / f"{name}.json") for each in folders] for name in _PLACES["objects"]}
    sources: dict[str, Any] = {name: next(filter(None, found), {}) for name, found in read.items()}
    state = max(read["trainer_state"], key=lambda each: whole(each.get("global_step")) or 0, default={})
    args = _first_of(read_arguments, folders) or {}
    given = (at(sources | {"args": args}, path) for path in _PLACES["given"])
    files = [each.relative_to(place).as_posix() for depth in _PLACES["depths"] for each in path.glob(depth)]
    own_steps = [revive(each) for each in iter_records(own.metrics)] if folders else []
    history = state.get("log_history")
    logged = own_steps or (history if isinstance(history, list) else [])
    return sources | {
        "versions": _versions(place, folders, sources),
        "args": args,
        "state": state,
        "deepspeed_json": _deepspeed_json(place, next(filter(None, given), None)),
        "steps": [each for each in logged if isinstance(each, dict) and "loss" in each] or logs.steps,
        "counts": partial(_counts, files),
        "weights": _first_of(weights, folders),
        "zero_adapters": _first_of(_zero_adapters, folders),
        "log": logs.facts,
        "causes": logs.causes,
    }


def at(mapping: Any, path: str) -> Any:
    """The value at a path of keys; None where there is none, or where it is left to others ("auto")."""
    for key in path.split("."):
        mapping = mapping.get(key) if isinstance(mapping, Mapping) else None
    return None if mapping == "auto" else mapping


def _first_of(read: Callable[[Path], Any], paths: Sequence[Path]) -> Any:
    """What is read from the first of them that has it and is not damaged."""
    for path in paths:
        with suppress(UsageError, OSError, ValueError, LookupError, TypeError):
            if (found := read(path)) is not None and found != {}:
                return found
    return None


def _logs(folder: Path) -> list[Path]:
    """Those in a run's folder; a .txt there is a vocabulary, or merges."""
    own = [each for each in sorted(folder.glob("*")) if each.is_file() and LOG.fullmatch(each.name)]
    logs = RunFolder(folder).logs
    return [each for each in own if ".txt" not in each.suffixes] + (logs_below(logs) if logs.is_dir() else [])


def _counts(files: Sequence[str], pattern: str) -> list[int]:
    """How many files of a folder match, as many numbers as differ among the folders that have one."""
    return sorted(set(Counter(name.rpartition("/")[0] for name in files if re.search(pattern, name)).values()))


def _versions(place: Path, folders: Sequence[Path], sources: Mapping[str, Any]) -> dict[str, str]:
    """The versions of packages by name: those of run.json, else of a pip freeze beside the run, else those that model
    cards and configs name."""
    found = {name: str(sources[file][key]) for name, (file, key) in _PLACES["named"].items() if key in sources[file]}
    freezes = [file for name in _PLACES["freezes"] for file in sorted(place.glob(name))]
    for file in (*(each / "README.md" for each in folders), *freezes):
        for name, version in _VERSIONS["card" if file.name == "README.md" else "freeze"].findall(_text(file)):
            found[_PLACES["packages"].get(name, name.lower().replace("_", "-"))] = version
    recorded = sources["run"].get("versions")
    return found | (recorded if isinstance(recorded, dict) else {})


def _text(file: Path) -> str:
    """The first megabytes of a text, also of one in UTF-16, as Windows writes lists of packages; "" where none is."""
    with suppress(OSError, UsageError):
        for data, limit in read_log(file, str(file)) if file.is_file() else ():
            return data[:limit].decode(errors="replace").replace("\r", "").lstrip("\ufeff")
    return ""


def _deepspeed_json(folder: Path, given: Any) -> Mapping[str, Any]:
    """What was given, or a JSON that lies in the run's folder."""
    if isinstance(given, Mapping):
        inner = given.get("config", given)
        return inner if isinstance(inner, Mapping) else {}
    files = [folder / re.split(r"[\\/]", given)[-1]] if isinstance(given, str) else sorted(folder.glob("*.json"))
    for file in files:
        with suppress(OSError, ValueError):  # a name that no file can have
            small = file.is_file() and file.stat().st_size < _LARGEST_JSON
            if small and "zero_optimization" in (read := read_object(file)):
                return read
    return {}


def _zero_adapters(folder: Path) -> tuple[int, int] | None:
    """How many B matrices of the adapter in `folder`, which begin as zeros, are still so, and how many there are."""
    file = folder / "adapter_model.safetensors"
    names = [name for name, (_, shape) in read_header(file).items() if "lora_B" in name and 0 not in shape]
    with open_regular(file) as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = parse_json(opened.read(length))
        places = [header[name]["data_offsets"] for name in names]
        zeros = [opened.seek(8 + length + begin) > 0 and _is_zero(opened, end - begin) for begin, end in places]
    return (sum(zeros), len(zeros)) if zeros else None


def _is_zero(stream: BinaryIO, size: int) -> bool:
    pieces = (stream.read(min(size - at, _PIECE)) for at in range(0, size, _PIECE))
    return all(piece and not piece.strip(b"\0") for piece in pieces)


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
