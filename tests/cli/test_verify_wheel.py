"""`dsrun verify-wheel` and `dsrun wheel push` as a user calls them, on wheels made here with real libraries.

The nodes are stand-ins: an `ssh` on PATH that runs the command in a folder of its own for each node, with a Python
environment of its own. What SLURM does is tried on a real cluster elsewhere.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import site
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_wheels import (
    PYTHON,
    SASS,
    built_note,
    compiled,
    container,
    entry,
    fake_deepspeed,
    hashed,
    make_wheel,
    needs_gcc,
)

NOTE = "deepspeed/git_version_info_installed.py"
FUSED = f"deepspeed/ops/adam/fused_adam_op.{PYTHON}-x86_64-linux-gnu.so"
FINE = "int twice(int x) { return 2 * x; }"
# What a processor does with an instruction it does not know.
CRASH = "__attribute__((constructor)) static void start(void) { __builtin_trap(); }"

pytestmark = needs_gcc


def torch_minor() -> str:
    """Major and minor version of the torch these tests run with."""
    return ".".join(importlib.metadata.version("torch").split(".")[:2])


def cuda_wheel(folder: Path) -> Path:
    section = container(entry(SASS, 80), entry(SASS, 90))
    library = compiled(folder / "c", FINE, section=section)
    return make_wheel(folder, {FUSED: library, NOTE: built_note(["fused_adam"], "cuda", "2.13", "13.0")})


# --- reading and comparing ---


def test_verify_wheel_for_supported_gpus(dsrun, here):
    done = dsrun("verify-wheel", str(cuda_wheel(here)), "--for", "a100,h100")
    assert (done.returncode, done.stderr) == (0, "")
    assert "fused_adam  8.0 9.0  -" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(".whl: no findings")


def test_verify_wheel_for_unsupported_gpu(dsrun, here):
    done = dsrun("verify-wheel", str(cuda_wheel(here)), "--for", "a100;12.0")
    assert done.returncode == 3
    assert "error fused_adam: no sm_120 code, and no PTX to fall back on [arch_missing]" in done.stdout
    assert "    add 12.0 to --arch of dsrun build-wheel" in done.stdout


def test_verify_wheel_json(dsrun, here):
    path = cuda_wheel(here)
    done = dsrun("verify-wheel", str(path), "--for", "10.0", "--format", "json")
    output = json.loads(done.stdout)
    assert done.returncode == 3
    assert set(output) == {"version", "wheel", "machine", "operations", "nodes", "findings"}
    assert (output["version"], output["machine"], output["nodes"]) == (1, None, [])
    assert output["wheel"]["path"] == str(path)
    assert output["wheel"]["libraries"][0]["sass"] == ["8.0", "9.0"]
    assert [each["code"] for each in output["findings"]] == ["arch_missing"]


def test_verify_wheel_unknown_gpu_is_usage_error(dsrun, here):
    done = dsrun("verify-wheel", str(cuda_wheel(here)), "--for", "a1000000")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a1000000" in done.stderr


def test_verify_wheel_on_and_for_are_exclusive(dsrun, here):
    done = dsrun("verify-wheel", str(cuda_wheel(here)), "--for", "a100", "--on", "n1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--on and --for do not go together" in done.stderr


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04rest"])
def test_verify_wheel_invalid_file_exits_2(dsrun, here, content):
    path = here / "deepspeed-1-py3-none-any.whl"
    path.write_bytes(content)
    done = dsrun("verify-wheel", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {path}: ")


def test_verify_wheel_tampered_wheel_exits_3(dsrun, here):
    path = make_wheel(here, {"deepspeed/a.py": "x"}, recorded={"deepspeed/a.py": hashed(b"y")})
    done = dsrun("verify-wheel", str(path), "--for", "a100")
    assert done.returncode == 3
    assert "deepspeed/a.py differs from its hash in RECORD [wheel_record]" in done.stdout


def test_verify_wheel_other_python_skips_smoke_test(dsrun, here):
    path = make_wheel(here, {NOTE: built_note(["tiny"])}, tag="cp39-cp39-linux_x86_64")
    output = json.loads(dsrun("verify-wheel", str(path), "--format", "json").stdout)
    assert "python_tag" in [each["code"] for each in output["findings"]]
    assert output["operations"] == []
    assert output["machine"]["python"] == PYTHON


def test_verify_wheel_missing_library_before_loading(dsrun, here):
    """A missing library is found before anything is loaded."""
    (here / "lib").mkdir()
    compiled(here / "lib", "int far(void) { return 1; }", name="libfaraway.so")
    flags = [f"-L{here / 'lib'}", "-Wl,--no-as-needed", "-lfaraway"]
    library = compiled(here / "c", "int far(void); int near(void) { return far(); }", *flags)
    path = make_wheel(here, {"deepspeed/ops/tiny_op.so": library, NOTE: built_note(["tiny"])})
    done = dsrun("verify-wheel", str(path), "--no-prove")
    assert done.returncode == 3
    assert "tiny: needs libfaraway.so, which is not on this machine [library_missing]" in done.stdout


# --- loading ---


@pytest.mark.train
def test_smoke_test_loads_each_op_in_own_process(dsrun, here):
    libraries = {"tiny": compiled(here / "a", FINE), "other": compiled(here / "b", CRASH)}
    path = fake_deepspeed(here, libraries, torch_minor())
    done = dsrun("verify-wheel", str(path), "--format", "json")
    output = json.loads(done.stdout)
    assert done.returncode == 3
    results = {each["op"]: (each["result"], each["what"]) for each in output["operations"]}
    assert results["tiny"] == ("loaded", "loaded")
    assert results["other"] == ("failed", "SIGILL: compiled for a newer processor than this one")
    assert [each["message"] for each in output["findings"]] == [
        "other: SIGILL: compiled for a newer processor than this one"
    ]


@pytest.mark.train
def test_smoke_test_fails_when_op_would_be_jit_compiled(dsrun, here):
    library = compiled(here / "b", FINE)
    path = make_wheel(
        here,
        {
            "deepspeed/__init__.py": "__version__ = '0'\n",
            "deepspeed/ops/__init__.py": "",
            "deepspeed/ops/op_builder/__init__.py": "",
            "deepspeed/ops/op_builder/builder.py": (
                "class OpBuilder:\n    def load(self): return self.jit_load()\n"
                "    def jit_load(self, verbose=True): print('compiling')\n"
            ),
            "deepspeed/ops/op_builder/all_ops.py": "from .builder import OpBuilder\nALL_OPS = {'tiny': OpBuilder()}\n",
            "deepspeed/ops/tiny_op.so": library,
            NOTE: built_note(["tiny"], torch=torch_minor()),
        },
    )
    done = dsrun("verify-wheel", str(path))
    assert done.returncode == 3
    assert "tiny: DeepSpeed would compile it now: the one in the wheel is not used [op_fails]" in done.stdout


@pytest.mark.train
def test_smoke_test_reports_failing_import(dsrun, here):
    library = compiled(here / "c", FINE)
    files = {
        "deepspeed/__init__.py": "raise ImportError('no module named hjson')",
        "deepspeed/ops/tiny_op.so": library,
        NOTE: built_note(["tiny"], torch=torch_minor()),
    }
    done = dsrun("verify-wheel", str(make_wheel(here, files)))
    assert done.returncode == 3
    assert "import: no module named hjson [import_fails]" in done.stdout


# --- nodes ---

SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
node=$1; shift
cd "{nodes}/$node" 2>/dev/null || {{ echo "ssh: connect to host $node port 22: No route to host" >&2; exit 255; }}
echo "Welcome to $node"
echo "$*" >> "{nodes}.log"
exec sh -c "$*"
"""
SRUN = """#!/bin/sh
while :; do case $1 in --nodelist=*) node=${{1#--nodelist=}}; shift;; --*) shift;; *) break;; esac; done
cd "{nodes}/$node" && exec "$@"
"""
SBCAST = """#!/bin/sh
shift
for node in "{nodes}"/*/; do cp "$1" "$node/$2" || exit 1; done
echo broadcast >> "{nodes}.log"
"""


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def nodes(tmp_path, environ):
    """A folder in which each folder is a node, reached through `ssh`, or `srun` inside a "SLURM allocation"."""
    folder = tmp_path / "nodes"
    tools = tmp_path / "tools"
    program(tools, "ssh", SSH.format(nodes=folder))
    environ["PATH"] = f"{tools}:{environ['PATH']}"
    return folder


def add_node(nodes: Path, name: str, *, usable: bool = True) -> Path:
    """A node with an environment that sees torch and pip of this one, and installs into itself."""
    node = nodes / name
    node.mkdir(parents=True)
    if usable:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(node / "env")], check=True)
        (packages,) = (node / "env/lib").glob("python3*/site-packages")
        (packages / "outer.pth").write_text("\n".join(site.getsitepackages()))
    return node


def installed(node: Path) -> list[str]:
    return sorted(path.name for path in node.glob("env/lib/python3*/site-packages/deepspeed*"))


def push(dsrun, path: Path, *args: str):
    done = dsrun("wheel", "push", str(path), "--python", "./env/bin/python", "--to", "wheels", *args)
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.exhaustive
def test_wheel_push_installs_and_smoke_tests_every_node(dsrun, here, nodes):
    path = fake_deepspeed(here, {"tiny": compiled(here / "a", FINE)}, torch_minor())
    pushed = [add_node(nodes, name) for name in ("n1", "n2")]
    done = push(dsrun, path, "--nodes", "n[1-2]")
    assert (done.returncode, done.stderr) == (0, "")
    for node in pushed:
        assert installed(node)[0] == "deepspeed"
        assert [file.name for file in (node / "wheels").iterdir()] == [path.name]
        assert stat.S_IMODE((node / "wheels").stat().st_mode) == 0o700
    rows = done.stdout.splitlines()
    assert rows[0].split() == ["node", "Python", "torch", "driver", "GPU", "result"]
    assert [row.split()[0] for row in rows[1:3]] == ["n1", "n2"]
    assert all(row.endswith("installed, 1 loaded") for row in rows[1:3])
    assert "already there, 1 loaded" in push(dsrun, path, "--nodes", "n1").stdout


@pytest.mark.train
def test_wheel_push_failing_node_does_not_hide_others(dsrun, here, nodes):
    path = fake_deepspeed(here, {"tiny": compiled(here / "a", FINE)}, torch_minor())
    good = add_node(nodes, "n1")
    add_node(nodes, "n2", usable=False)
    (here / "hosts").write_text("# the cluster\nn1 slots=8\nn2 slots=8\n\nn3 slots=8\n")
    done = push(dsrun, path, "--hostfile", "hosts", "--format", "json")
    output = json.loads(done.stdout)
    assert done.returncode == 3
    messages = {each["node"]: [finding["message"] for finding in each["findings"]] for each in output["nodes"]}
    assert messages["n1"] == []
    assert "./env/bin/python" in messages["n2"][0]
    assert "No route to host" in messages["n3"][0]
    assert installed(good)
    assert output["findings"] == []


@pytest.mark.exhaustive
def test_wheel_push_nodes_with_different_torch(dsrun, here, nodes):
    path = fake_deepspeed(here, {"tiny": compiled(here / "a", FINE)}, torch_minor())
    add_node(nodes, "n1")
    other = add_node(nodes, "n2")
    (packages,) = (other / "env/lib").glob("python3*/site-packages")
    (packages / "torch").mkdir()
    (packages / "torch/version.py").write_text(f"__version__ = '{torch_minor()}.99+other'\ncuda = None\n")
    (packages / "torch/__init__.py").write_text("raise ImportError('half a torch')\n")
    done = push(dsrun, path, "--nodes", "n1,n2")
    assert done.returncode == 3
    differ = [line for line in done.stdout.splitlines() if line.startswith("error torch differs")]
    assert len(differ) == 1
    assert f"{torch_minor()}.99+other on n2" in differ[0]


def test_wheel_push_corrupted_copy_is_not_installed(dsrun, here, nodes, environ):
    path = make_wheel(here, {"deepspeed/__init__.py": ""})
    node = add_node(nodes, "n1")
    program(nodes.parent / "tools", "cat", "#!/bin/sh\nexec head -c 100\n")
    done = push(dsrun, path, "--nodes", "n1")
    assert done.returncode == 3
    assert "the copy differs from the wheel that was sent" in done.stdout
    assert installed(node) == []
    assert list((node / "wheels").iterdir()) == []


def test_wheel_push_world_writable_folder_is_refused(dsrun, here, nodes):
    path = make_wheel(here, {"deepspeed/__init__.py": ""})
    node = add_node(nodes, "n1")
    (node / "wheels").mkdir()
    (node / "wheels").chmod(0o777)
    done = push(dsrun, path, "--nodes", "n1")
    assert "can be written by others" in done.stdout
    assert installed(node) == []


@pytest.mark.train
def test_wheel_push_in_allocation_uses_sbcast_and_srun(dsrun, here, nodes, environ):
    path = make_wheel(here, {"deepspeed/__init__.py": ""}, tag="py3-none-any")
    program(nodes.parent / "tools", "srun", SRUN.format(nodes=nodes))
    program(nodes.parent / "tools", "sbcast", SBCAST.format(nodes=nodes))
    environ |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    pushed = [add_node(nodes, name) for name in ("n1", "n2")]
    done = push(dsrun, path)
    assert done.returncode == 0
    assert Path(f"{nodes}.log").read_text() == "broadcast\n"
    assert all("deepspeed" in installed(node) for node in pushed)


@pytest.mark.train
def test_wheel_push_without_sbcast_sends_copies(dsrun, here, nodes, environ):
    path = make_wheel(here, {"deepspeed/__init__.py": ""}, tag="py3-none-any")
    program(nodes.parent / "tools", "srun", SRUN.format(nodes=nodes))
    program(nodes.parent / "tools", "sbcast", "#!/bin/sh\nexit 1\n")
    environ |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    pushed = [add_node(nodes, name) for name in ("n1", "n2")]
    assert push(dsrun, path).returncode == 0
    assert all("deepspeed" in installed(node) for node in pushed)


def test_wheel_push_refuses_damaged_wheel(dsrun, here, nodes):
    path = make_wheel(here, {"deepspeed/a.py": "x"}, recorded={"deepspeed/a.py": hashed(b"y")})
    node = add_node(nodes, "n1")
    done = push(dsrun, path, "--nodes", "n1")
    assert done.returncode == 3
    assert not (node / "wheels").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no nodes: this is not a SLURM allocation"),
        (["--nodes", "n1", "--hostfile", "hosts"], "name the nodes twice"),
        (["--hostfile", "gone"], "gone: cannot be read"),
        (["--nodes", "n[1-"], "a bracket is missing"),
        (["--nodes", "-x"], "'-x' is not a list of nodes"),
    ],
)
def test_wheel_push_node_list_errors(dsrun, here, nodes, args, message):
    (here / "hosts").write_text("n1\n")
    done = push(dsrun, make_wheel(here, {"deepspeed/__init__.py": ""}), *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.train
def test_verify_wheel_on_nodes_leaves_nothing(dsrun, here, nodes):
    path = fake_deepspeed(here, {"tiny": compiled(here / "a", FINE)}, torch_minor())
    node = add_node(nodes, "n1")
    done = dsrun("verify-wheel", str(path), "--on", "n1", "--python", "./env/bin/python")
    assert (done.returncode, done.stderr) == (0, "")
    assert "installed, 1 loaded" in done.stdout
    assert installed(node) == []
    (folder,) = set(re.findall(r"/tmp/dsrun-verify-\w+", Path(f"{nodes}.log").read_text()))
    assert not Path(folder).exists()
