"""The environment of agent and workers: what is needed, where it is needed; the user's own values take precedence."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsrun.launch.context import LocalWorkers
from dsrun.launch.environment import launch_environment, library_has_libuv, network_variables

CPU = LocalWorkers(2, "cpu", 8)
GPU = LocalWorkers(2, "cuda", 8)


def changes(topology=CPU, environ=None, **options):
    options = {"run": Path("/runs/x"), "external": True, "debug": False, **options}
    return launch_environment(topology, environ or {}, **options)


def test_gloo_uses_loopback_only_on_single_node():
    """gloo stays on the loopback interface only where this machine is the only node."""
    assert changes()["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in changes(nodes=2)
    network = {"GLOO_SOCKET_IFNAME": "eth0"}
    assert changes(nodes=2, network=network)["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "GLOO_SOCKET_IFNAME" not in changes(environ={"GLOO_SOCKET_IFNAME": "ib0"}, nodes=2, network=network)


def test_nccl_flight_recorder_dumps_into_run_folder():
    """NCCL's last collectives are kept in the run folder."""
    assert changes(GPU)["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/runs/x/logs/flight-recorder-rank-"
    assert changes(GPU)["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert not [name for name in changes() if "NCCL" in name]
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" not in changes(GPU, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"})


def test_use_libuv_disabled_only_where_torch_lacks_it():
    """USE_LIBUV=0 is set only where torch was built without libuv."""
    assert "USE_LIBUV" not in changes()
    assert changes(libuv=False)["USE_LIBUV"] == "0"
    assert "USE_LIBUV" not in changes(environ={"USE_LIBUV": "1"}, libuv=False)


def test_accelerate_variables_dropped_for_own_worker_only():
    """What would mislead dsrun's own worker may be meant for a user's script."""
    environ = {"ACCELERATE_USE_CPU": "true"}
    assert "ACCELERATE_USE_CPU" not in changes(environ=environ)
    assert changes(environ=environ, external=False)["ACCELERATE_USE_CPU"] is None


def test_node_rank_set_for_external_program():
    """A user's script gets NODE_RANK, as other launchers set it."""
    assert changes(environ={"NODE_RANK": "7"}, nodes=3, node=2)["NODE_RANK"] == "2"
    assert "NODE_RANK" not in changes(external=False)


def test_run_folder_passed_as_dsrun_output():
    """Workers are told the run folder in DSRUN_OUTPUT."""
    assert changes()["DSRUN_OUTPUT"] == "/runs/x"


INTERFACES = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.5", "fe80::1"], "docker0": ["172.17.0.1"]}


@pytest.mark.parametrize(
    ("met_from", "own_name", "more", "expected"),
    [
        ("10.0.0.5", ["10.0.0.5"], {}, {}),
        # Debian writes 127.0.1.1 for the machine's own name into /etc/hosts.
        ("10.0.0.5", ["127.0.1.1"], {}, {"GLOO_SOCKET_IFNAME": "eth0"}),
        ("10.0.0.5", [], {}, {"GLOO_SOCKET_IFNAME": "eth0"}),
        ("127.0.0.1", ["10.0.0.5"], {}, {"GLOO_SOCKET_IFNAME": "lo"}),
        ("10.0.0.5", ["10.0.0.5"], {"virbr0": ["192.168.1.1"]}, {"NCCL_SOCKET_IFNAME": "=eth0"}),
        ("10.0.0.5", ["10.0.0.5"], {"virbr0": ["192.168.1.1"], "ib0": ["10.1.0.5"]}, {}),
        ("10.9.9.9", ["127.0.1.1"], {}, {}),
        (None, ["127.0.1.1"], {}, {}),
    ],
)
def test_socket_ifname_set_only_where_default_is_wrong(met_from, own_name, more, expected):
    """Interfaces are named only where another one would be taken."""
    assert network_variables(met_from, {**INTERFACES, **more}, own_name) == expected


def test_the_installed_torch_has_libuv():
    """As PyTorch's own builds do: torch's store with libuv works there without USE_LIBUV."""
    spec = find_spec("torch")
    assert spec
    assert library_has_libuv(Path(spec.origin).parent / "lib" / "libtorch_cpu.so")


@pytest.mark.parametrize("style", ["gnu", "sysv"])
def test_libuv_detected_in_torch_library_symbols(tmp_path, style):
    """A library without libuv is told from one that contains or links it."""

    def build(name, source, *options):
        file = tmp_path / name
        code = file.with_suffix(".cpp")
        code.write_text(f'extern "C" {{ {source} }}')
        style_option = f"-Wl,--hash-style={style}"
        command = ["c++", "-shared", "-fPIC", style_option, str(code), "-o", str(file), *options]
        subprocess.run(command, check=True)
        return file

    without = build("libtorch_cpu.so", "int other(void) { return 0; }")
    inside = build("libinside.so", "int uv_loop_init(void *loop) { return 0; }")
    libuv = build("libuv.so.1", "int uv_loop_init(void *loop) { return 0; }", "-Wl,-soname,libuv.so.1")
    linked = build("liblinked.so", "int uv_loop_init(void*); int f(void) { return uv_loop_init(0); }", str(libuv))
    assert not library_has_libuv(without)
    assert library_has_libuv(inside)
    assert library_has_libuv(linked)


def test_libuv_assumed_for_unreadable_library(tmp_path):
    """A library that cannot be read counts as having libuv."""
    assert library_has_libuv(tmp_path / "missing.so")
    (tmp_path / "text.so").write_text("no ELF")
    assert library_has_libuv(tmp_path / "text.so")
