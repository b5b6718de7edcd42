"""Wrong arguments of the wheel commands: the flag is named before anything is built or sent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_wheels import make_wheel


def dsrun(*args: str, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dsrun", *args],
        capture_output=True,
        text=True,
        env=os.environ | {"DSRUN_CACHE": str(cache)},
        timeout=120,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error of exit code 2."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("flag", ["ops", "deepspeed", "cpu", "cxx", "python", "partition", "output"])
def test_build_wheel_empty_value_is_refused(flag: str, tmp_path: Path) -> None:
    """A script's variable that was not set must not start the default build."""
    assert f"--{flag} is empty" in refused(dsrun("build-wheel", f"--{flag}", "", cache=tmp_path / "cache"))


def test_build_wheel_unwritable_output_is_refused_early(tmp_path: Path) -> None:
    """An output that cannot be written is refused before the build."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    places = ("file", "file/below", "link", "link/below", "n" * 300)
    for place in (*(tmp_path / name for name in places), Path("/proc/below")):
        message = refused(dsrun("build-wheel", "--arch", "cpu", "-o", str(place), cache=tmp_path / "cache"))
        assert f"-o {place}" in message
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--for", "nonsens"), "--for: no GPU called 'nonsens'"),
        (("--for", "cpu"), "--for cpu names no GPU"),
        (("--for", ""), "--for is empty"),
        (("--on", ""), "--on is empty"),
        (("--python", "/no/python"), "--python /no/python is not a program"),
    ],
)
def test_verify_wheel_errors_name_its_flag(args: tuple[str, str], message: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"deepspeed/__init__.py": b""})
    assert message in refused(dsrun("verify-wheel", str(wheel), *args, cache=tmp_path))


def test_wheel_push_missing_hostfile(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"deepspeed/__init__.py": b""})
    message = refused(dsrun("wheel", "push", str(wheel), "--hostfile", "none", cache=tmp_path))
    assert "none: cannot be read: No such file or directory (" in message


def test_verify_wheel_of_another_package(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"other/__init__.py": b""}, name="other")
    done = dsrun("verify-wheel", str(wheel), "--no-prove", cache=tmp_path)
    assert "is other, not DeepSpeed" in done.stdout
    assert done.returncode == 0
