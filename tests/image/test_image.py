"""What is in the image, and that it trains as a pod would: another user, a read-only root, no init process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from importlib.metadata import version

import pytest

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import is_complete
from dsrun.runs.records import read_records
from dsrun.wheel.platform.wheel_package import wheel_package
from dsrun.wheel.sdist import fetch_sdist
from dsrun.wheel.verify.contents import read_wheel
from tests.image.container import FS_GROUP, Container, first_process
from tests.integration.kept import user_cache
from tests.integration.wheel_sources import tiny_tree

WHEELS = "/opt/dsrun/wheels"
# Where the root is read-only, dsrun render-k8s gives a pod a home on a volume.
HOME = {"HOME": "/tmp"}


def train(steps: int) -> list[str]:
    flags = ["--zero", "2", "--model", "demo-t5", "--nproc", "1", "--output", "/runs/run"]
    return ["train", *flags, "--max-steps", str(steps)]


def test_image_settings(image):
    """Nothing of the build is left in the environment: neither its arguments nor settings of pip."""
    assert image.entrypoint == ["dsrun"]
    assert image.cmd == ["--help"]
    # A number: only then can Kubernetes tell that it is not root.
    assert image.user == "1000:1000"
    assert set(image.env) == {"PATH", "HOME"}
    assert image.labels["org.opencontainers.image.revision"] == "1a2b3c4d"
    assert image.labels["dsrun.arch"] == "cpu"


def test_image_has_no_set_user_id_programs_or_leftovers(image, container):
    """Neither sources nor build tools of the other stages, nor files of apt and pip."""
    shell = """
        find / -xdev -type f -perm /6000
        ls -A -d /src /root/.cache /var/lib/apt/lists/* /var/cache/apt/archives/*.deb
        ls -d /opt/dsrun/lib/python3*/site-packages/hatchling
        command -v nvcc
    """
    _, output = container.run("-c", shell, program="/bin/sh", user=0, stderr=subprocess.DEVNULL)
    assert output == ""
    assert [each for layer in (image.root.layer, *image.root.below) for each in (layer / "tmp").iterdir()] == []


def test_image_help_and_version(image, container):
    assert container.run("--version") == (0, "dsrun, version 0.1.0\n")
    code, output = container.run(*image.cmd)
    assert (code, output.splitlines()[0]) == (0, "Usage: dsrun [OPTIONS] COMMAND [ARGS]...")


@pytest.mark.parametrize("user", [1000, 12345])
def test_image_doctor_has_no_warnings(container, user):
    """Also for a user that the image does not know, as OpenShift's."""
    code, output = container.run("doctor", user=user)
    assert code == 0, output
    assert "warning" not in output, output


def test_image_operations_work(container):
    """Every operation of the wheel is loaded and computes what torch computes."""
    code, output = container.run("-c", f"dsrun verify-wheel {WHEELS}/deepspeed-*.whl", program="/bin/sh")
    assert code == 0, output
    assert output.endswith(".whl: no findings\n")
    assert "async_io: 1 MiB written and read back" in output


def test_build_stage_compiles_operations(builder, tmp_path):
    """The stage that makes the wheels has all that `dsrun build-wheel` compiles with; the default operations of the
    image may have been compiled before."""
    stage = Container(builder.images["wheels"], tmp_path)
    sdist = fetch_sdist(version("deepspeed"), wheel_package().sdist[version("deepspeed")], user_cache() / "sdists")
    tree = tiny_tree(sdist, stage.runs / "tree")
    flags = ["--arch", "cpu", "--ops", "cpu_lion", "--deepspeed", f"/runs/tree/{tree.name}"]
    env = {"DSRUN_CACHE": "/runs/cache"}
    code, output = stage.run("build-wheel", *flags, program="dsrun", user=0, env=env)
    assert code == 0, output
    (wheel,) = (stage.runs / "cache/wheels").glob("[0-9a-f]*/*.whl")
    assert read_wheel(wheel).installed_ops == ("cpu_lion",)


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


def test_image_trains_as_unknown_user_on_read_only_root(container):
    """The entry point is process 1; what it writes to the volume belongs to the user and the volume's group."""
    code, output = container.run(*train(3), user=12345, env=HOME, read_only=True)
    assert code == 0, output
    folder = RunFolder(container.runs / "run")
    assert folder.finished.exists()
    written = (folder.model / "config.json").stat()
    assert (written.st_uid, written.st_gid) == (12345, FS_GROUP)


def test_image_saves_when_process_1_gets_sigterm(container):
    """The eviction of a pod: exit code 75, and the same command goes on."""
    folder = RunFolder(container.runs / "run")
    with container.start(*train(5000), "--logging-steps", "1") as started:
        while not (folder.metrics.exists() and any("loss" in row for row in read_records(folder.metrics))):
            assert started.poll() is None, started.communicate()[0]
            time.sleep(0.1)
        os.kill(first_process(started).pid, signal.SIGTERM)
        output = started.communicate()[0]
    assert started.returncode == 75, output
    (step, _), *_ = folder.checkpoints()
    assert is_complete(folder.checkpoint(step))
    code, output = container.run(*train(step + 2))
    assert code == 0, output
    assert [row["kind"] for row in read_records(folder.events)].count("resume") == 1
