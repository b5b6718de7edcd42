"""What is in the image, and that it trains as a pod would: another user, a read-only root, no init process."""

from __future__ import annotations

import os
import signal
import time

import pytest

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import is_complete
from dsrun.runs.records import read_records
from tests.image.container import FS_GROUP, first_process

WHEELS = "/opt/dsrun/wheels"
# The root is read-only; dsrun render-k8s gives a pod this home.
HOME = {"HOME": "/tmp"}


def train(name: str, steps: int) -> list[str]:
    return [
        *("train", "--zero", "2", "--model", "demo-t5", "--nproc", "1"),
        *("--max-steps", str(steps), "--output", f"/runs/{name}"),
    ]


def test_image_settings(image):
    """Nothing of the build is left in the environment: neither its arguments nor settings of pip."""
    assert image.entrypoint == ["dsrun"]
    assert image.cmd == ["--help"]
    # A number: only then can Kubernetes tell that it is not root.
    assert image.user == "1000:1000"
    assert set(image.env) == {"PATH", "HOME"}
    assert image.labels["org.opencontainers.image.revision"] == "1a2b3c4d"
    assert image.labels["dsrun.arch"] == "cpu"


def test_image_has_no_set_user_id_programs_or_leftovers(image):
    """Neither sources nor build tools of the other stages, nor files of apt and pip."""
    layers = [image.root.layer, *image.root.below]
    privileged = {
        f"/{path.relative_to(layer)}"
        for layer in layers
        for folder in ("usr", "opt", "etc")
        for path in (layer / folder).rglob("*")
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o6000
    }
    own = {
        path for path in privileged if image.root.find(path).stat().st_mode & 0o6000
    }
    assert own == set()
    left = [image.root.layer.parent, *image.root.below[:-1]]
    for layer in [image.root.layer, *image.root.below[:-1]]:
        for folder in ("src", "tmp", "root/.cache", "var/lib/apt/lists", "run/host"):
            assert not (layer / folder).is_dir() or not list((layer / folder).iterdir()), (layer, folder)
    assert left
    with pytest.raises(FileNotFoundError):
        image.root.find("/opt/dsrun/lib/python3.11/site-packages/hatchling")


def test_image_help_and_version(image, container):
    assert container.run("--version") == (0, "dsrun, version 0.1.0\n")
    code, output = container.run(*image.cmd)
    assert (code, output.splitlines()[0]) == (0, "Usage: dsrun [OPTIONS] COMMAND [ARGS]...")


@pytest.mark.parametrize("user", [1000, 12345])
def test_image_doctor_has_no_warnings(container, user):
    """Also for a user that the image does not know, as OpenShift's."""
    code, output = container.run("doctor", user=user, env=HOME)
    assert code == 0, output
    assert "warning" not in output, output


def test_image_operations_work(container):
    """Every operation of the wheel is loaded and computes what torch computes."""
    code, output = container.run("-c", f"dsrun verify-wheel {WHEELS}/deepspeed-*.whl", program="/bin/sh", env=HOME)
    assert code == 0, output
    assert output.endswith(".whl: no findings\n")
    assert "async_io: 1 MiB written and read back" in output


def test_image_compiles_extensions(container):
    """Triton compiles C against Python's headers, torch C++, at the first step."""
    shell = """
        echo '#include <Python.h>' > /tmp/launcher.c
        echo '#include <vector>' > /tmp/operation.cc
        cc -shared -fPIC $(python3-config --includes) -o /tmp/launcher.so /tmp/launcher.c
        c++ -std=c++17 -shared -fPIC -o /tmp/operation.so /tmp/operation.cc
        ninja --version
    """
    code, output = container.run("-euc", shell, program="/bin/sh")
    assert code == 0, output


@pytest.mark.parametrize("user", [1000, 12345])
def test_image_trains_without_init(container, user):
    """The entry point is process 1; what it writes to the volume belongs to the user and the volume's group."""
    code, output = container.run(*train("run", 3), user=user, env=HOME)
    assert code == 0, output
    folder = RunFolder(container.runs / "run")
    assert folder.finished.exists()
    written = (folder.model / "config.json").stat()
    assert (written.st_uid, written.st_gid) == (user, FS_GROUP)


def test_image_saves_when_process_1_gets_sigterm(container):
    """The eviction of a pod: exit code 75, and the same command goes on."""
    folder = RunFolder(container.runs / "run")
    with container.start(*train("run", 5000), "--logging-steps", "1", env=HOME) as started:
        while not (folder.metrics.exists() and any("loss" in row for row in read_records(folder.metrics))):
            assert started.poll() is None, started.communicate()[0]
            time.sleep(0.1)
        os.kill(first_process(started).pid, signal.SIGTERM)
        output = started.communicate()[0]
    assert started.returncode == 75, output
    (step, _), *_ = folder.checkpoints()
    assert is_complete(folder.checkpoint(step))
    code, output = container.run(*train("run", step + 2), env=HOME)
    assert code == 0, output
    assert [row["kind"] for row in read_records(folder.events)].count("resume") == 1
