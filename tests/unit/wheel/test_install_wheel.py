"""The program that installs a wheel on a node: killed anywhere it leaves a package that imports, and it repairs."""

from __future__ import annotations

import json
import os
import signal
import site
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsrun.system.files import sha256_of
from dsrun.wheel.verify import install_wheel
from tests.tiny_wheels import make_wheel

# Runs the program, which dies when it calls `name` for the `nth` time, before or after the call.
DIES = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import install_wheel
calls, call = [], install_wheel.{name}
def dying(*args):
    calls.append(args)
    if len(calls) == {nth} and not {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    call(*args)
    if len(calls) == {nth}:
        os.kill(os.getpid(), signal.SIGKILL)
install_wheel.{name} = dying
install_wheel.main()
"""
NO_EXCHANGE = """
import sys
sys.path.insert(0, {folder!r})
import install_wheel
install_wheel.ctypes.get_errno = lambda: install_wheel.errno.EINVAL
install_wheel._RENAME_EXCHANGE = 1 << 30
sys.exit(install_wheel.main())
"""
FOLDER = str(Path(install_wheel.__file__).parent)


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """An environment with the pip of this one."""
    folder = tmp_path_factory.mktemp("install") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages(folder) / "outer.pth").write_text("\n".join(site.getsitepackages()))
    return folder


def packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3*/site-packages")
    return found


def wheel_of(folder: Path, version: str, *, script: str = "", **files: str) -> Path:
    """A wheel whose package has two modules that must be of one version, and a program named `script`."""
    contents = {"deepspeed/__init__.py": f"from .inner import number\nassert number == {version!r}\n"}
    contents["deepspeed/inner.py"] = f"number = {version!r}\n"
    if script:
        contents[f"deepspeed-{version}.data/scripts/{script}"] = "#!python\nimport deepspeed\n"
    contents |= {f"{name}.py": text for name, text in files.items()}
    folder.mkdir(mode=0o755, exist_ok=True)
    return make_wheel(folder, contents, version=version, tag="py3-none-any")


def install(environment: Path, wheel: Path, program: str = "", **more: object) -> str:
    """What the program says it did, or "killed"."""
    asked = {"do": "install", "wheel": str(wheel), "sha256": more.get("sha256") or sha256_of(wheel)}
    words = json.dumps({**asked, "name": "deepspeed", "target": None, "part": None, "force": False, **more})
    source = ["-c", program.replace("{folder!r}", repr(FOLDER))] if program else [install_wheel.__file__]
    command = [str(environment / "bin/python"), *source, words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGKILL:
        return "killed"
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    return str(said.get("how") or said["error"])


def imported(environment: Path) -> str:
    """The version of the package; importing it fails unless it is whole."""
    command = [str(environment / "bin/python"), "-c", "import deepspeed; print(deepspeed.number)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def leftovers(environment: Path) -> list[str]:
    site_packages = packages(environment)
    infos = [path.name for path in site_packages.glob("*.dist-info")]
    return [path.name for path in site_packages.glob(".dsrun*")] + infos


@pytest.mark.parametrize(
    ("name", "nth", "after"),
    [
        ("pip", 1, True),
        ("exchange", 1, False),
        ("exchange", 1, True),
        ("exchange", 2, True),
        ("swap", 1, True),
        ("remove_others", 1, True),
    ],
)
def test_install_killed_anywhere_leaves_old_or_new_package(tmp_path, environment, name, nth, after):
    old, new = wheel_of(tmp_path / "old", "1.0"), wheel_of(tmp_path / "new", "2.0")
    install(environment, old, force=True)
    dies = DIES.replace("{name}", name).replace("{nth}", str(nth)).replace("{after}", str(after))
    assert install(environment, new, dies) == "killed"
    assert imported(environment) in ("1.0", "2.0")
    install(environment, new)
    assert imported(environment) == "2.0"
    assert leftovers(environment) == ["deepspeed-2.0.dist-info"]
    assert install(environment, new) == "already there"


@pytest.mark.parametrize("lost", ["deepspeed/inner.py", "deepspeed-1.0.dist-info/RECORD"])
def test_install_repairs_what_is_damaged(tmp_path, environment, lost):
    wheel = wheel_of(tmp_path, "1.0")
    install(environment, wheel)
    (packages(environment) / lost).unlink()
    assert install(environment, wheel) == "repaired"
    assert imported(environment) == "1.0"
    assert install(environment, wheel) == "already there"


def test_install_replaces_changed_file(tmp_path, environment):
    wheel = wheel_of(tmp_path, "1.0")
    install(environment, wheel)
    (packages(environment) / "deepspeed/inner.py").write_text("number = 'changed'\n")
    assert install(environment, wheel) == "repaired"
    assert imported(environment) == "1.0"


def test_install_forced(tmp_path, environment):
    wheel = wheel_of(tmp_path, "1.0")
    install(environment, wheel)
    assert install(environment, wheel, force=True) == "installed"


def test_install_asks_for_file_that_is_absent_or_another(tmp_path, environment):
    wheel = wheel_of(tmp_path, "3.0")
    assert install(environment, wheel, sha256="0" * 64) == "needs file"
    wheel.unlink()
    assert install(environment, wheel, sha256="0" * 64) == "needs file"


def test_install_tells_signal_that_killed_pip(tmp_path, environment):
    """The kernel kills what has no memory left, and pip then says nothing."""
    killed = (
        "import sys; sys.path.insert(0, {folder!r}); import install_wheel\n"
        "install_wheel._PIP = ('-c', 'import os; os.kill(os.getpid(), 9)')\ninstall_wheel.main()\n"
    )
    assert "signal 9" in install(environment, wheel_of(tmp_path, "5.0"), killed, force=True)


def test_install_where_files_cannot_be_exchanged(tmp_path, environment):
    for version in ("1.0", "2.0"):
        wheel = wheel_of(tmp_path / version, version)
        assert install(environment, wheel, NO_EXCHANGE, force=True) == "installed"
        assert imported(environment) == version
    assert leftovers(environment) == ["deepspeed-2.0.dist-info"]


def test_install_removes_programs_and_modules_of_old_wheel(tmp_path, environment):
    old = wheel_of(tmp_path / "old", "1.0", script="ds_old", ds_module="x = 1")
    new = wheel_of(tmp_path / "new", "2.0", script="ds_new")
    install(environment, old)
    assert (environment / "bin/ds_old").exists()
    assert (packages(environment) / "ds_module.py").exists()
    install(environment, new)
    assert not (environment / "bin/ds_old").exists()
    assert not (packages(environment) / "ds_module.py").exists()
    assert (environment / "bin/ds_new").read_text().startswith(f"#!{environment}/bin/python")
    assert install(environment, new) == "already there"


def test_installed_package_uninstalls_with_pip(tmp_path, environment):
    install(environment, wheel_of(tmp_path, "2.0", script="ds_new"))
    command = [str(environment / "bin/python"), "-m", "pip", "uninstall", "-qy", "deepspeed"]
    subprocess.run(command, check=True)
    assert leftovers(environment) == []
    assert not (environment / "bin/ds_new").exists()
    assert not (packages(environment) / "deepspeed").exists()


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_install_refuses_folder_that_others_can_write(tmp_path, environment, mode):
    wheel = wheel_of(tmp_path / "wheels", "4.0")
    wheel.parent.chmod(mode)
    assert "can be written by others" in install(environment, wheel)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a link to another user")
def test_link_of_other_user_is_no_folder_for_wheels(tmp_path):
    """He could let it lead to another folder between the comparison and the installation."""
    (tmp_path / "real").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to("real")
    install_wheel.check_folder(link)
    os.lchown(link, 20001, 20001)
    with pytest.raises(install_wheel.InstallRefused):
        install_wheel.check_folder(link)


def test_receive_removes_parts_of_dead_copies(tmp_path):
    old, young = tmp_path / ".n1.1.part", tmp_path / ".n2.2.part"
    for part in (old, young):
        part.write_bytes(b"x")
    hours_ago = time.time() - 7200
    os.utime(old, (hours_ago, hours_ago))
    tmp_path.chmod(0o700)
    asked = {"do": "receive", "wheel": str(tmp_path / "a.whl"), "sha256": "0" * 64, "size": 3}
    command = [sys.executable, install_wheel.__file__, json.dumps(asked)]
    done = subprocess.run(command, input=b"abc", capture_output=True, check=True)
    assert "differs from the wheel" in json.loads(done.stdout)["error"]
    assert list(tmp_path.iterdir()) == [young]
