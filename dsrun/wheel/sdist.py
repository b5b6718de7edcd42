"""Source distributions: fetching one through pip, and unpacking it safely."""

import importlib.util
import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from packaging.version import InvalidVersion, Version

from dsrun.errors import ToolError, UsageError
from dsrun.refusals import Refusals
from dsrun.system.files import DISK_FULL, sha256_of
from dsrun.system.process.proc import capture
from dsrun.system.process.scratch import scratch_folder
from dsrun.wheel.platform.wheel_package import WheelPackage, wheel_package

_TEXTS = Refusals(__file__, "refusals.toml")
_FETCH_S = 1800.0
_LONGEST = 1 << 16  # bytes of a file with the version
_BROKEN = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)


def release_version(text: str, where: object) -> str:
    """The version in `text`, which `where` names, in the form that setuptools gives it. Raises UsageError."""
    with suppress(InvalidVersion):
        version = Version(text.strip())
        if version.local is None:
            return str(version)
    raise _TEXTS.error("sdist.version", where=where, text=text.strip())


def fetch_sdist(
    version: str, sha256: str, cache: Path, *, package: WheelPackage | None = None, python: str = sys.executable
) -> Path:
    """The sdist of `package` (DeepSpeed) `version` with that hash, from the folder `cache` or fetched into it by pip.

    pip prepares metadata after a download, which runs the package's setup.py in the environment of `python`;
    --require-hashes makes it compare the hash first. Raises ToolError when the hash differs or pip fails,
    MissingError without pip."""
    package = package or wheel_package()
    kept = cache / f"{package.stem}-{version}.tar.gz"
    if kept.is_file() and sha256_of(kept) == sha256:
        return kept
    cache.mkdir(parents=True, exist_ok=True)
    with scratch_folder("dsrun-pip-", cache) as work:
        path = _download(package, version, sha256, work, python)
        if sha256_of(path) != sha256:
            raise ToolError(f"{path.name} is not the file whose SHA-256 is {sha256}")
        path.replace(kept)
    return kept


def _download(package: WheelPackage, version: str, sha256: str, work: Path, python: str) -> Path:
    (work / "wanted.txt").write_text(f"{package.name}==={version} --hash=sha256:{sha256}\n", encoding="utf-8")
    options = ["--no-deps", "--no-binary", package.name, "--require-hashes"]
    if python != sys.executable or importlib.util.find_spec("setuptools"):
        options.append("--no-build-isolation")  # else pip fetches setuptools only to read the metadata
    argv = [*pip_of(python), "download", *options]
    # A user's DS_BUILD_OPS=1 would make setup.py look for compilers while it only tells its name.
    quiet = {name: "" for name in os.environ if name.startswith(package.variables)}
    answer = capture(
        [*argv, "-d", str(work), "-r", str(work / "wanted.txt")],
        seconds=_FETCH_S,
        changes={**quiet, **package.metadata},
        cwd=work,
    )
    found = sorted(work.glob("*.tar.gz"))
    if answer.returncode == 0 and found:
        return found[0]
    said = answer.stdout + answer.stderr
    got = next((line.split()[-1] for line in said.splitlines() if line.split()[:1] == ["Got"]), "another")
    errors = [line for line in said.splitlines() if line.startswith("ERROR:")] or said.strip().splitlines()[-1:]
    reason = errors[0].removeprefix("ERROR:").strip() if errors else "no output"
    names = {"package": package, "version": version}
    _TEXTS.check("pip", said=said, sha256=sha256, got=got, **names)
    raise _TEXTS.error("sdist.not_fetched", reason=reason, **names)


def pip_of(python: str) -> list[str]:
    """dsrun's own pip, working for the environment of `python`, which may have none."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    return pip if python == sys.executable else [*pip, "--python", python]


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """`path` as a tar archive; a damaged one raises UsageError, a full disk stays an OSError."""
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            yield archive
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise  # the archive is intact: fetching it again would not help
        raise UsageError(f"{path} cannot be used as a source distribution: {error}", fix="fetch it again") from error


def read_version(path: Path, package: WheelPackage) -> str:
    """The version of the sdist `path`, read without unpacking it. Raises UsageError for anything that is not one."""
    wanted = PurePosixPath(package.version_file).parts
    version = None
    with _opened(path) as archive:
        for member in archive:
            if member.isfile() and PurePosixPath(member.name).parts[1:] == wanted:
                content = archive.extractfile(member)
                version = package.version_in(content.read(_LONGEST).decode("utf-8", "replace")) if content else None
    if not version:
        raise _TEXTS.error("sdist.foreign", path=path, package=package)
    return release_version(version, f"{path}: {package.version_file}")


def unpack(path: Path, into: Path) -> None:
    """Unpack the sdist `path` so that `into` (a new folder) holds setup.py; on an error `into` is not there."""
    work = into.with_name(f".{into.name}.unpacking")
    work.mkdir(parents=True)
    try:
        with _opened(path) as archive:
            _extract(archive, work)
        folders = list(work.iterdir())
        if len(folders) != 1 or not (folders[0] / "setup.py").is_file():
            raise _TEXTS.error("sdist.folders", path=path)
        folders[0].rename(into)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Raises tarfile.TarError for a member that would be written elsewhere."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    # Debian 12's Python 3.11.2: filters came with 3.11.4.
    for member in archive:
        name = PurePosixPath(member.name)
        if not (member.isfile() or member.isdir()) or name.is_absolute() or ".." in name.parts:
            raise tarfile.ReadError(f"{member.name} is not a file or a folder in it")
    archive.extractall(folder)
