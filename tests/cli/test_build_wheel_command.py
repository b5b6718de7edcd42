"""`dsrun build-wheel` up to the first compiler: what it would do, and what it rejects."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

from dsrun.system.files import sha256_of
from dsrun.wheel.cache import LOG_NAME, RECORD_NAME
from tests.fake_programs import program

KEY = re.compile(r"/wheels/([0-9a-f]{20})$", re.MULTILINE)


@pytest.fixture(autouse=True)
def away_from_home(environ, tmp_path):
    """No store but an empty one, and no cluster."""
    environ["DSRUN_CACHE"] = str(tmp_path / "cache")
    for name in ("CUDA_HOME", "CUDA_PATH", "CXX", "CFLAGS", "LDFLAGS"):
        environ.pop(name, None)


def dry(dsrun, *args):
    done = dsrun("build-wheel", "--dry-run", "--arch", "cpu", "--ops", "cpu_lion", *args)
    assert done.returncode == 0, done.stderr
    return done


def key_of(done):
    return KEY.search(done.stderr)[1]


def test_dry_run_prints_script_and_writes_nothing(dsrun, tmp_path):
    done = dry(dsrun)
    assert subprocess.run(["sh", "-n"], input=done.stdout, text=True, check=False).returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "#!/bin/sh"
    assert "# cpu_lion" in lines
    exported = {line.strip() for line in lines}
    assert {"export DS_BUILD_CPU_LION=1", "export DS_BUILD_CPU_ADAM=0", "export DS_BUILD_OPS=0"} <= exported
    assert "export DS_ACCELERATOR=cpu" in exported
    assert f"dsrun-wheel-{key_of(done)}" in done.stdout
    # By this file the next command would take the folder for that of a killed process.
    assert "/.owner" not in done.stdout
    assert lines[-1].startswith(f"{sys.executable} -m dsrun build-wheel")
    assert not (tmp_path / "cache").exists()


def test_dry_run_of_several_ops_shows_each(dsrun):
    done = dsrun("build-wheel", "--dry-run", "--arch", "cpu", "--ops", "cpu_lion,cpu_adam")
    names = [line for line in done.stdout.splitlines() if re.fullmatch("# [a-z_]+", line)]
    assert names == ["# cpu_adam", "# cpu_lion"]


def test_cache_key_follows_inputs_only(dsrun, environ):
    """The key follows what goes into the wheel, not how it is built."""
    first = key_of(dry(dsrun))
    assert key_of(dry(dsrun, "--jobs", "7", "--keep")) == first
    environ["CFLAGS"] = "-O0"
    assert key_of(dry(dsrun)) == first
    assert key_of(dry(dsrun, "--cpu", "x86-64-v2")) != first
    assert key_of(dry(dsrun, "--keep-symbols")) != first
    adam = key_of(dry(dsrun, "--ops", "cpu_adam"))
    assert adam != first
    assert key_of(dry(dsrun, "--ops", "cpu_adam", "--deepspeed", "0.19.7")) != adam
    environ["CPATH"] = "/opt/include"
    assert key_of(dry(dsrun)) != first


def test_unused_cflags_are_reported(dsrun, environ):
    environ["CFLAGS"] = "-O0"
    done = dry(dsrun)
    assert "note: CFLAGS in the environment: not used for this build" in done.stderr
    assert "-O0" not in done.stdout


def test_underscores_in_flags(dsrun):
    assert dsrun("build-wheel", "--dry_run", "--arch", "cpu", "--ops", "cpu_lion").returncode == 0


def test_cpu_torch_without_gpu_is_reported(dsrun):
    done = dsrun("build-wheel", "--dry-run", "--ops", "cpu_lion")
    assert done.returncode == 0
    assert "torch is a CPU build" in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--arch", "a100"), 2, "torch is a CPU build"),
        (("",), 2, "PACKAGE is empty"),
        (("flash_atn",), 2, "did you mean flash-attn? known: deepspeed, causal-conv1d, flash-attn, mamba-ssm"),
        (("bitsandbytes",), 2, "holds binaries"),
        (("causal-conv1d",), 2, "code for GPUs alone"),
        (("causal-conv1d", "--arch", "cpu", "--source", "1.0.0"), 2, "code for GPUs alone"),
        (("torch-scatter", "--arch", "cpu", "--source", "2.1.1"), 2, "no hash for torch-scatter 2.1.1 (it has 2.1.2)"),
        (("torch-scatter", "--arch", "cpu", "--source", "."), 2, "not a source tree of torch-scatter"),
        (("torch_scatter", "--arch", "cpu", "--ops", "all"), 2, "--ops is for DeepSpeed"),
        (("--arch", "h1OO"), 2, "h1OO"),
        (("--arch", "cpu", "--ops", "cpu_adm"), 2, "did you mean cpu_adam?"),
        (("--arch", "cpu", "--ops", "utils"), 2, "utils exists for cuda only"),
        (("--arch", "cpu", "--ops", "deepspeed_ccl_comm"), 4, "oneCCL"),
        (("--arch", "cpu", "--cpu", "x86-64-v9"), 2, "x86-64-v9"),
        (("--arch", "cpu", "--cxx", "/nowhere/g++"), 2, "/nowhere/g++"),
        (("--arch", "cpu", "--python", "/nowhere/python"), 2, "--python /nowhere/python"),
        (("--arch", "cpu", "--deepspeed", "0.18.0"), 2, "0.18.0"),
        (("--arch", "cpu", "--deepspeed", "."), 2, "not a source tree of DeepSpeed"),
        (("--arch", "cpu", "--jobs", "0"), 2, "--jobs"),
        (("--arch", "cpu", "-o", "file"), 2, "-o file: file cannot be written: Not a directory"),
        (("--arch", "cpu", "--partition", "gpu"), 2, "--partition gpu does not go with --arch cpu"),
    ],
)
def test_impossible_build_is_one_line_error(dsrun, here, tmp_path, args, code, message):
    """What cannot be built is one line, and nothing is compiled."""
    (here / "file").touch()
    done = dsrun("build-wheel", *args)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert not (tmp_path / "cache" / "wheels").exists()


def test_build_environment_without_torch(dsrun, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    done = dsrun("build-wheel", "--arch", "cpu", "--python", str(tmp_path / "bare/bin/python"))
    assert (done.returncode, done.stdout) == (4, "")
    assert "has no torch" in done.stderr
    assert "pip install torch" in done.stderr


def test_build_environment_without_ninja(dsrun, environ, tmp_path):
    """An environment that sees torch and setuptools, and a PATH on which there are compilers and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    packages = next((tmp_path / "env").glob("lib/*/site-packages"))
    (packages / "more.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("g++", "gcc", "as", "ld", "sh"):
        (programs / name).symlink_to(shutil.which(name))
    environ["PATH"] = str(programs)
    done = dsrun("build-wheel", "--arch", "cpu", "--ops", "cpu_lion", "--python", str(tmp_path / "env/bin/python"))
    assert done.returncode == 4, done.stderr
    assert "no ninja" in done.stderr
    assert "pip install ninja" in done.stderr


def test_build_environment_of_old_python(dsrun, tmp_path):
    old = program(tmp_path / "python3.8", "echo 'dsrun: python 3.8'")
    done = dsrun("build-wheel", "--arch", "cpu", "--python", str(old))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{old} is Python 3.8, too old: 3.10" in done.stderr


def test_build_environment_that_pip_may_not_change(dsrun, tmp_path):
    """Debian's Python (PEP 668) without torch: the mend is an environment of its own."""
    answers = "echo 'dsrun: python 3.11'; echo 'dsrun: managed /usr/lib/python3.11/EXTERNALLY-MANAGED'"
    torch = "echo 'dsrun: '; echo 'dsrun: cpython-311'; echo 'dsrun: /usr/lib/python3/dist-packages'"
    debian = program(tmp_path / "python3", f'case "$2" in *EXTERNALLY-MANAGED*) {answers};; *) {torch};; esac')
    done = dsrun("build-wheel", "--arch", "cpu", "--python", str(debian))
    assert (done.returncode, done.stdout) == (4, "")
    assert f"{debian} -m venv env && env/bin/python -m pip install torch 'setuptools>=70.1' ninja" in done.stderr
    assert f"{debian} -m pip" not in done.stderr


def test_build_environment_without_headers(dsrun, tmp_path):
    """Debian has Python.h in python3-dev: its absence is told before a compiler starts."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    packages = next((tmp_path / "env").glob("lib/*/site-packages"))
    other = "lambda name, *a, ask=sysconfig.get_path, **k: '/nowhere' if name == 'include' else ask(name, *a, **k)"
    lines = (sysconfig.get_path("purelib"), f"import sysconfig; sysconfig.get_path = {other}")
    (packages / "more.pth").write_text("\n".join(lines))
    done = dsrun("build-wheel", "--arch", "cpu", "--ops", "cpu_lion", "--python", str(tmp_path / "env/bin/python"))
    assert (done.returncode, done.stdout) == (4, "")
    assert "no Python.h in /nowhere" in done.stderr
    assert f"apt install python{sys.version_info[0]}.{sys.version_info[1]}-dev" in done.stderr


def test_unchanged_request_is_served_from_cache(dsrun, here, tmp_path):
    """Nothing but the store can have answered: this wheel was never compiled."""
    key = key_of(dry(dsrun))
    entry = tmp_path / "cache/wheels" / key
    entry.mkdir(parents=True)
    wheel = entry / "deepspeed-0.19.8+stored-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"as good as compiled")
    (entry / LOG_NAME).touch()
    record = {"version": 1, "wheel": wheel.name, "sha256": sha256_of(wheel)}
    (entry / RECORD_NAME).write_text(json.dumps(record))
    args = ("build-wheel", "--arch", "cpu", "--ops", "cpu_lion")
    assert dsrun(*args).stdout == f"{wheel}\n"
    assert "already cached" in dry(dsrun).stderr
    done = dsrun(*args, "-o", "dist")
    assert done.stdout == f"dist/{wheel.name}\n"
    assert (here / "dist" / wheel.name).read_bytes() == b"as good as compiled"
    assert json.loads((here / "dist/WHEEL.json").read_text()) == record
