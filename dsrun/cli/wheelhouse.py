"""`dsrun wheel list`, `gc` and `index`: the wheels in the store, and folders of wheels for pip."""

from pathlib import Path

from dsrun.cli.output import evaluated, print_json, print_line, print_table
from dsrun.datafiles import toml_beside
from dsrun.errors import MissingError, UsageError
from dsrun.system.process.scratch import left_folders, remove_left
from dsrun.system.terminal.stderr import print_note
from dsrun.system.variables import cache_root
from dsrun.wheel.cache import WheelCache, size_of
from dsrun.wheel.compile.cached import PREFIX, build_root
from dsrun.wheel.wheelhouse import ALL, find_wheels, write_index


def store() -> WheelCache:
    """The store of this user."""
    return WheelCache(cache_root() / "wheels")


def list_wheels(*, folder: Path | None, form: str) -> int:
    place = folder or store().root
    wheels = find_wheels(place) if folder or place.is_dir() else []
    if form == "json":
        print_json({"folder": str(place), "wheels": wheels})
        return 0
    if not wheels:
        print_line(f"{place}: no wheels")
        return 0
    columns = toml_beside(__file__, "wheel_list.toml")["columns"]
    print_table([[*columns], *([*evaluated(columns, wheel=each, place=place).values()] for each in wheels)])
    return 0


def remove_unused(*, days: float, dry_run: bool, form: str) -> int:
    cache = store()
    removed: list[dict[str, object]] = []
    builds = {path: host for path, host in left_folders(build_root()).items() if path.name.startswith(PREFIX)}
    unknown = [{"path": str(path), "host": host} for path, host in builds.items() if host is not None]
    for path in (*cache.unused(days), *(path for path, host in builds.items() if host is None)):
        try:
            size = size_of(path)
            gone = dry_run or (remove_left(path) if path in builds else cache.remove(path))
        except OSError as error:
            what = f"{path} cannot be removed: {error.strerror or error}"
            raise MissingError(what, fix="set DSRUN_CACHE to your own store") from error
        if gone:
            removed.append({"path": str(path), "size": size})
            if form == "text":
                print_line(f"{'would remove' if dry_run else 'removed'} {path} ({size / 2**20:.1f} MiB)")
    for each in unknown:
        print_note(f"{each['path']} stays: only {each['host']}, which made it, knows whether that build goes on")
    if form == "json":
        print_json({"removed": removed, "unknown": unknown, "dry_run": dry_run})
    elif not removed:
        print_line(f"{cache.root}: nothing that was unused for {days:g} days")
    return 0


def write_indexes(*, folder: Path, form: str) -> int:
    try:
        counts = write_index(folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}", fix="name another folder") from error
    place = folder.absolute()
    if form == "json":
        print_json({"indexes": [{"url": f"{(place / name).as_uri()}/", "wheels": n} for name, n in counts.items()]})
        return 0
    for name, count in counts.items():
        print_line(f"{place / name}: {count} wheel{'s' * (count != 1)}")
    some = next((name for name in counts if name != ALL), ALL)
    print_line(f"pip install deepspeed==VERSION --extra-index-url {(place / some).as_uri()}/")
    return 0
