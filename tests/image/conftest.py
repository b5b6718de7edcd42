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
def image(request):
    """The Dockerfile's last stage for a machine without GPUs; compiled operations and pip's packages stay cached."""
    if reason := missing():
        pytest.exit(f"the tests of the image cannot run: {reason}", returncode=4)
    folder = Path(tempfile.mkdtemp(prefix="image-", dir="/var/tmp"))
    try:
        host = this_machine(folder)
        kept_wheels = user_cache() / "image/wheels"
        kept_wheels.mkdir(parents=True, exist_ok=True)
        host.mounts.append((kept_wheels, CACHE))
        args = {"ARCH": "cpu", "REVISION": "1a2b3c4d", "DSRUN_CACHE": CACHE, "PIP_NO_CACHE_DIR": ""}
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            built = Builder(ROOT, folder, host, args).build()
            print(f"the image has {built.root.size / 1e9:.2f} GB", file=sys.stderr)
        yield built
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def container(image, tmp_path):
    return Container(image, tmp_path)
