"""The commands of a build as a shell script, for `build-wheel --dry-run`."""

import base64
import shlex
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dsrun.datafiles import toml_beside
from dsrun.system.process.scratch import OWNER, scratch_folder
from dsrun.system.variables import cache_root
from dsrun.wheel.compile.build_environment import difference
from dsrun.wheel.compile.cached import PREFIX, build_root
from dsrun.wheel.compile.compile_wheel import CompileProcess, WheelBuild, WheelParts, group_ops, plan_processes
from dsrun.wheel.platform.wheel_package import wheel_package

_SOURCE = (
    "import sys; from pathlib import Path; from dsrun.wheel.select_source import resolve_source; "
    "_, text, into, cache, name, python = sys.argv; "
    "resolve_source(text or None, Path(into), cache=Path(cache), name=name, python=python)"
)
_TEXTS: dict[str, str] = toml_beside(__file__)
_END = "END_OF_FILE"


def build_script(build: WheelBuild, parts: WheelParts, environ: Mapping[str, str], again: Sequence[str]) -> str:
    """A POSIX shell script that does what `build` would do in `environ`.

    It compiles each operation into a part, keeps it among `parts`, and then runs the command `again`, which merges them
    into the wheel."""
    request = build.request
    source = (request.package, str(build.context.python))
    folder = build_root() / f"{PREFIX}{request.key}-{uuid.uuid4().hex[:8]}"
    sdists = str(cache_root(environ) / "sdists")
    with scratch_folder("dsrun-dry-run-") as scratch:
        processes, _ = plan_processes(build, group_ops(build.ops), scratch, environ)
        lines = [
            _TEXTS["head"].format(name=wheel_package(request.package).title, version=request.full_version),
            *_files(scratch),
            shlex.join([sys.executable, "-c", _SOURCE, build.source or "", f"{scratch}/source", sdists, *source]),
            *(_part(process, scratch, parts.root, environ) for process in processes),
            shlex.join(["rm", "-rf", str(scratch)]),
            "# Merges the parts.",
            shlex.join(again),
        ]
        return "\n".join(lines).replace(str(scratch), str(folder))


def _files(folder: Path) -> Iterator[str]:
    """What makes the files and links below `folder`: the compilers' wrappers, and a CUDA_HOME if there is one."""
    for path in sorted({folder, *folder.rglob("*")} - {folder / OWNER}):  # nobody holds the script's folder locked
        if path.is_symlink():
            yield shlex.join(["ln", "-s", str(path.readlink()), str(path)])
        elif path.is_dir():
            yield shlex.join(["mkdir", "-p", str(path)])
        else:
            yield from _file(path)


def _file(path: Path) -> Iterator[str]:
    data = path.read_bytes()
    to = shlex.quote(str(path))
    try:
        yield f"cat >{to} <<'{_END}'\n{data.decode()}{_END}"
    except UnicodeDecodeError:
        yield f"base64 -d >{to} <<'{_END}'\n{base64.b64encode(data).decode()}\n{_END}"
    if path.stat().st_mode & 0o100:
        yield f"chmod +x {to}"


def _part(process: CompileProcess, folder: Path, parts: Path, environ: Mapping[str, str]) -> str:
    paths = {"tree": process.tree, "made": process.argv[-1], "kept": parts / f"{process.key}.whl"}
    changes = (
        f"    unset {name}\n" if value is None else f"    export {name}={shlex.quote(value)}\n"
        for name, value in sorted(difference(environ, process.env).items())
    )
    return _TEXTS["part"].format(
        label=process.label,
        folders=shlex.join(["mkdir", "-p", str(folder / "trees"), process.argv[-1], str(parts)]),
        changes="".join(changes),
        command=shlex.join(process.argv),
        **{name: shlex.quote(str(path)) for name, path in {**paths, "source": folder / "source"}.items()},
    )
