"""The program that is sent to nodes: what it finds on this machine, and that it needs nothing but Python."""

from __future__ import annotations

import ast
import json
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from dsrun.wheel.verify import install_wheel, on_node, probe, run_ops


def told(*needed: str, **environ: str) -> dict:
    # -I -S: without dsrun, site-packages, or anything else that a node may lack; from stdin, as it is sent.
    argv = [sys.executable, "-I", "-S", "-", *needed]
    with Path(probe.__file__).open("rb") as file:
        done = subprocess.run(argv, stdin=file, capture_output=True, text=True, check=True, env=environ or None)
    return json.loads(done.stdout)


def test_probe_facts_of_this_host():
    facts = told()
    assert facts["python"] == f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert facts["machine"] == platform.machine()
    assert facts["glibc"] == platform.libc_ver()[1]
    assert facts["torch"] is None
    assert facts["absent"] == []


def test_probe_tells_python_that_is_too_old():
    older = f"import sys; sys.version_info = (3, 8, 18); exec(open({probe.__file__!r}).read())"
    done = subprocess.run([sys.executable, "-c", older], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Python 3.8 ")
    assert "--python" in done.stderr


def test_what_runs_before_the_probe_takes_older_pythons():
    """Python 3.8 fails at annotations like `str | None` and `list[str]`."""
    tree = ast.parse(Path(on_node.__file__).read_text())
    annotations = [each.annotation for each in ast.walk(tree) if isinstance(each, (ast.arg, ast.AnnAssign))]
    annotations += [each.returns for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    assert annotations
    assert not [each for each in annotations if isinstance(each, (ast.BinOp, ast.Subscript))]


def test_probe_lists_missing_shared_libraries(tmp_path):
    (tmp_path / "libhere.so.1").write_bytes(b"")
    assert told("libc.so.6", "libnowhere.so.7", "libhere.so.1")["absent"] == [
        "libnowhere.so.7",
        "libhere.so.1",
    ]
    beside = told("libnowhere.so.7", "libhere.so.1", LD_LIBRARY_PATH=str(tmp_path))
    assert beside["absent"] == ["libnowhere.so.7"]


def test_probe_reads_torch_without_import(tmp_path):
    (tmp_path / "torch/lib").mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch/version.py").write_text("__version__ = '2.13.0+cu130'\ncuda: str = '13.0'\n")
    (tmp_path / "torch/lib/libc10.so").write_bytes(b"\x7fELF _ZNSt7__cxx1112basic_string")
    argv = [sys.executable, probe.__file__]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path)})
    facts = json.loads(done.stdout)
    assert (facts["torch"], facts["torch_cuda"], facts["cxx11_abi"]) == ("2.13.0+cu130", "13.0", True)


def test_killed_check_of_async_io_leaves_no_file(tmp_path, monkeypatch):
    """The file has no name while it is written and read: who checks an operation may be killed by it."""

    class Handle:
        def sync_pwrite(self, data, file, _offset):
            Path(file).write_bytes(data)
            there.append(list(tmp_path.iterdir()))

        def sync_pread(self, data, file, _offset):
            data[:] = Path(file).read_bytes()

    there, op = [], SimpleNamespace(load=lambda: SimpleNamespace(aio_handle=lambda *_: Handle()))
    torch = SimpleNamespace(
        uint8=None, randint=lambda *_, **__: bytearray(b"x"), zeros_like=lambda data: bytearray(len(data))
    )
    torch.equal = bytearray.__eq__
    for name in ("deepspeed", "deepspeed.ops", "deepspeed.ops.op_builder"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "deepspeed.ops.op_builder.all_ops", SimpleNamespace(ALL_OPS={"async_io": op}))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(run_ops.tempfile, "tempdir", str(tmp_path))
    assert "read back" in run_ops.async_io()
    assert there == [[]]


def test_programs_sent_to_nodes_import_no_dsrun():
    for module in (probe, install_wheel, run_ops):
        source = Path(module.__file__).read_text(encoding="utf-8")
        assert "from dsrun" not in source
