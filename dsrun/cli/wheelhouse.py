"""`dsrun wheel list`, `gc` and `index`: the wheels in the store, and folders of wheels for pip."""

from pathlib import Path

from dsrun.cli.output import evaluated, print_json, print_line, print_table
from dsrun.datafiles import toml_beside
from dsrun.errors import MissingError, UsageError
from dsrun.system.variables import cache_root
from dsrun.wheel.cache import WheelCache, size_of
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
    for path in cache.unused(days):
        try:
            size = size_of(path) if dry_run else cache.remove(path)
        except OSError as error:
            raise MissingError(
                f"{path} cannot be removed: {error.strerror or error}", fix="set DSRUN_CACHE to your own store"
            ) from error
        if size:
            removed.append({"path": str(path), "size": size})
            if form == "text":
                print_line(f"{'would remove' if dry_run else 'removed'} {path} ({size / 2**20:.1f} MiB)")
    if form == "json":
        print_json({"removed": removed, "dry_run": dry_run})
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
