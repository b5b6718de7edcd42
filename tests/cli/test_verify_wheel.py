"""`dsrun verify-wheel` as a user calls it, on wheels made here with real libraries."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
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
    assert "error: fused_adam: no sm_120 code, and no PTX to fall back on [arch_missing]" in done.stdout
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
