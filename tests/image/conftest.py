"""The image, built once for the session, and a container with volumes of its own for each test."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.image.__main__ import missing
from tests.image.build import Builder
from tests.image.container import Container
from tests.image.host import this_machine
from tests.integration.kept import user_cache

ROOT = Path(__file__).parents[2]
CACHE = "/run/host/wheels"


@pytest.fixture(scope="session")
def builder(request):
    """The Dockerfile's stages for a machine without GPUs, built; compiled operations and pip's packages stay cached."""
    if reason := missing():
        pytest.exit(f"the tests of the image cannot run: {reason}", returncode=4)
    folder = Path(tempfile.mkdtemp(prefix="image-", dir="/var/tmp"))
    try:
        host = this_machine(folder)
        kept_wheels = user_cache() / "image/wheels"
        take_compiled_operations(kept_wheels / "wheels/parts")
        host.mounts.append((kept_wheels, CACHE))
        args = {"ARCH": "cpu", "REVISION": "1a2b3c4d", "DSRUN_CACHE": CACHE, "PIP_NO_CACHE_DIR": ""}
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            built = Builder(ROOT, folder, host, args)
            print(f"the image has {built.build().root.size / 1e9:.2f} GB", file=sys.stderr)
        yield built
    finally:
        shutil.rmtree(folder)


def take_compiled_operations(parts: Path) -> None:
    """Put the operations that tests/integration/test_wheel_build.py has compiled on this machine into `parts`.

    A part has the name of its request: that of another Python, compiler or C library than the image's is not taken.
    """
    parts.mkdir(parents=True, exist_ok=True)
    for part in (user_cache() / "wheel").glob("*/cache/wheels/parts/*.whl"):
        if not (parts / part.name).exists():
            shutil.copy2(part, parts)


@pytest.fixture(scope="session")
def image(builder):
    """The Dockerfile's last stage."""
    return list(builder.images.values())[-1]


@pytest.fixture
def container(image, tmp_path):
    return Container(image, tmp_path)
