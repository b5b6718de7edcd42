"""A wheel that somebody has built already: from a folder, another store or a page of links, instead of compiling."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from dsrun.errors import DsrunError
from dsrun.system.process.proc import capture
from dsrun.wheel.cache import LOG_NAME, make_record, write_record
from dsrun.wheel.compile.assemble import wrong_with_wheel
from dsrun.wheel.compile.compile_wheel import WheelBuild
from dsrun.wheel.sdist import pip_of
from dsrun.wheel.verify.archive import check_archive, open_wheel
from dsrun.wheel.verify.contents import read_archive

_FETCH_S = 1800.0


def take_from(place: str, build: WheelBuild, staged: Path, notify: Callable[[str], None]) -> bool:
    """Put the wheel that `build` would make, if `place` has it, with WHEEL.json and a log into the empty `staged`.

    `place`: a folder of wheels, another store, or the URL of an index (PEP 503) or of a page of links; pip looks there,
    with its own configuration, for the version that only this request has. A wheel that is damaged or made of something
    else is not taken; `notify` is called with the reason."""
    wheel = _download(place, build, staged, notify)
    if wheel is None:
        return False
    wrong = _wrong_with(wheel, build)
    if wrong:
        notify(f"{wheel.name} from {place} is not used: {wrong}")
        wheel.unlink()
        return False
    with open_wheel(wheel) as archive:
        report = read_archive(archive)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_record(staged, make_record(build.request, report, seconds={}, by_process={}, started=now))
    (staged / LOG_NAME).write_text(f"taken from {place}\n", encoding="utf-8")
    notify(f"taken from {place}")
    return True


def _download(place: str, build: WheelBuild, into: Path, notify: Callable[[str], None]) -> Path | None:
    request = build.request
    wanted = f"{request.package}==={request.full_version}"
    where = ["--index-url", place, "--find-links", place]
    if "://" not in place:
        folder = Path(place).expanduser().absolute()
        own = folder / request.key
        where = ["--no-index", "--find-links", str(own if own.is_dir() else folder)]
    # Of an sdist pip would run setup.py, only to learn its name.
    options = ["--no-deps", "--only-binary", ":all:", "-d", str(into)]
    argv = [*pip_of(str(build.context.python)), "download", *options, *where, wanted]
    try:
        answer = capture(argv, seconds=_FETCH_S, cwd=into)
    except DsrunError as error:
        notify(f"pip could not look in {place}: {error.message}")
        return None
    found = sorted(into.glob("*.whl"))
    if answer.returncode == 0 and found:
        return found[0]
    lines = [line.strip() for line in (answer.stdout + answer.stderr).splitlines()]
    reasons = [line for line in lines if line.startswith(("WARNING:", "ERROR:")) and place.rstrip("/") in line]
    if reasons:
        notify(f"pip could not look in {place}: {reasons[0].partition(':')[2].strip()}")
    return None


def _wrong_with(wheel: Path, build: WheelBuild) -> str | None:
    """Why the wheel is not the one that would be built; None when it is."""
    try:
        with open_wheel(wheel) as archive:
            report, findings = read_archive(archive), check_archive(archive)
    except DsrunError as error:
        return error.message
    if not report.built_from or report.built_from["key"] != build.request.key:
        return "it was built from something else"
    wrong = [*(finding.message for finding in findings), *wrong_with_wheel(report, build.request, build.ops)]
    return wrong[0] if wrong else None
