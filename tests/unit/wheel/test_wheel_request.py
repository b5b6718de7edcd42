"""Which requests are one wheel, and what the wheel is called."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from dsrun.wheel.compile.build_environment import WheelRequest

CPU = WheelRequest(
    version="0.19.8",
    source="sha256:aa",
    torch="2.13.0+cpu",
    python="cp311",
    platform="Linux x86_64 glibc 2.36",
    accelerator="cpu",
    ops=("cpu_adam", "cpu_lion"),
    cpu="x86-64-v3",
    compiler="gcc 12.2.0",
)
CUDA = replace(CPU, torch="2.13.0", cuda="13.0", nvcc="13.0", accelerator="cuda", archs="8.0;9.0")

OTHER = {
    "package": "causal-conv1d",
    "version": "0.19.7",
    "source": "sha256:bb",
    "label": "patched.1a2b3c4d",
    "torch": "2.13.1",
    "cuda": "13.2",
    "nvcc": "13.2",
    "python": "cp312",
    "platform": "Linux x86_64 glibc 2.39",
    "accelerator": "cpu",
    "archs": "8.0;9.0+PTX",
    "ops": ("cpu_adam",),
    "cpu": "x86-64-v4",
    "compiler": "gcc 13.2.0",
    "symbols": True,
    "environment": (("CPATH", "/opt/include"),),
    "recipe": "0",
}


def test_cache_key_is_equal_for_equal_inputs():
    assert replace(CUDA).key == CUDA.key
    assert len(CUDA.key) == 20
    assert int(CUDA.key, 16) >= 0


def test_cache_key_is_stable():
    """A change means that every stored wheel is built again: raise RECIPE when that is wanted."""
    assert (CPU.key, CUDA.key) == ("b96f065fb3de8aebc43d", "cb70d14ef8be1da81b74")


@pytest.mark.parametrize("name", [each.name for each in fields(WheelRequest)])
def test_cache_key_depends_on_every_input(name):
    assert replace(CUDA, **{name: OTHER[name]}).key != CUDA.key


@pytest.mark.parametrize(
    ("request_", "local"),
    [
        (CUDA, "cu130torch2.13.sm80.sm90"),
        (replace(CUDA, archs="7.5;9.0+PTX"), "cu130torch2.13.sm75.sm90ptx"),
        (replace(CUDA, archs="12.1", label="git.1a2b3c4d"), "cu130torch2.13.sm121.git.1a2b3c4d"),
        (replace(CUDA, cuda="12.8", torch="2.10.0a0+nv25.9"), "cu128torch2.10.sm80.sm90"),
        (CPU, "cputorch2.13.x8664v3"),
        (replace(CPU, cpu="native.zen4.12ab34cd"), "cputorch2.13.nativezen4"),
        (
            replace(CPU, cpu="armv8.2-a+sve", label="patched.00ff00ff"),
            "cputorch2.13.armv82asve.patched.00ff00ff",
        ),
        # Eight hexadecimal digits may all be decimal: as a number it loses the zero in front.
        (replace(CPU, label="git.01234567"), "cputorch2.13.x8664v3.git.1234567"),
    ],
)
def test_wheel_local_version(request_, local):
    local = f"{local}.k{request_.key[:8]}"
    assert request_.local_version == local
    # As packaging normalises it, or the file's name would say something else than the version that was asked for.
    assert str(Version(f"0.19.8+{local}")) == f"0.19.8+{local}"
    _, version, _, _ = parse_wheel_filename(f"deepspeed-0.19.8+{local}-cp311-cp311-linux_x86_64.whl")
    assert version.local == local


@pytest.mark.parametrize("name", [each.name for each in fields(WheelRequest)])
def test_different_wheels_have_different_versions(name):
    """Else pip would keep the one that is installed."""
    other = replace(CUDA, **{name: OTHER[name]})
    assert (other.package, other.full_version) != (CUDA.package, CUDA.full_version)


def test_request_as_dict_is_plain_json():
    given = replace(CUDA, environment=(("CPATH", "/opt/include"),)).as_dict()
    assert given["ops"] == ["cpu_adam", "cpu_lion"]
    assert given["environment"] == {"CPATH": "/opt/include"}
    assert given["archs"] == "8.0;9.0"
