"""`dsrun build-wheel` for real: one CPU wheel of the operations that it builds by default.

It takes 10 to 15 CPU minutes, so that it is kept until something changes that its compilation follows from. What stands
around the compilation is tried in every session, with the compiled operations of the kept wheel.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from time import monotonic

import pytest

from dsrun.cli.build_wheel import line_of
from dsrun.datafiles import data_folder
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import verify
from dsrun.system.files import sha256_of
from dsrun.wheel.compile.output import BuildTracker, follow
from dsrun.wheel.verify.contents import read_wheel
from tests.integration.builder import ROOT, Builder
from tests.integration.conftest import SHORT, dsrun, many_engines
from tests.integration.kept import kept, user_cache

# Cold and on a busy machine, the wheel of the first test takes almost the half hour that others have.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1500)]

# `make test` asks for a compiler and no more; .ci/run installs libaio, so that there it is built and used.
LIBAIO = Path("/usr/include/libaio.h").exists()
ALONE = {"cpu_adam", "cpu_adagrad", "cpu_lion", "fused_adam", "deepspeed_shm_comm"}
BUILT_OPS = ALONE | {"pin_memory"} | ({"async_io"} if LIBAIO else set())
BUILDS = ALONE | {"async_io+pin_memory" if LIBAIO else "pin_memory"}


ARGUMENTS = ("--deepspeed", version("deepspeed"), "--jobs", "2")
# Beside these files the operations and what is said follow from the arguments, the libraries, the compiler and the
# processor. The rest of dsrun chooses the request, after which the compiled operations are named: with another one they
# are not found by `test_wheel_of_compiled_operations_is_the_same`.
SOURCES = [
    *(ROOT / "dsrun" / each for each in ("wheel/compile", "wheel/platform", "system/process/proc.py")),
    *(ROOT / "build" / each for each in ("cpu.toml", "ops.toml", "deepspeed.lock.toml")),
    ROOT / "tests/integration/builder.py",
]


def machine():
    """What else a wheel follows from."""
    compiler = subprocess.run(["c++", "-v"], capture_output=True, text=True, check=True).stderr
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Feat")))
    packages = [f"{name} {version(name)}" for name in ("deepspeed", "torch", "setuptools", "ninja")]
    return [*packages, sys.version, compiler, flags, f"libaio {LIBAIO}", *ARGUMENTS]


def with_sdist(folder, sdist):
    """A builder that has the source of DeepSpeed already."""
    made = Builder(folder)
    sdists = made.cache / "sdists"
    sdists.mkdir(parents=True)
    (sdists / sdist.name).symlink_to(sdist)
    return made


@pytest.fixture(scope="session")
def real(sdist):
    """A builder with a wheel, and the wheel's path."""

    def build(folder):
        code, out, err = with_sdist(folder, sdist).run(*ARGUMENTS)
        assert code == 0, err
        (folder / "said.json").write_text(json.dumps([out]))

    folder = kept(user_cache() / "wheel", machine(), SOURCES, build)
    return Builder(folder), json.loads((folder / "said.json").read_text())[0]


@pytest.fixture(scope="session")
def clean(real, tmp_path_factory):
    """An environment with this wheel in it, and behind it the packages of the tests' own: torch and the rest."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next(folder.glob("lib/*/site-packages"))
    (packages / "zz-behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _, out = real
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", out.strip()], check=True)
    return folder


def in_clean(clean, code, **env):
    """Run Python code where nothing can be compiled: no compiler on PATH, and asking for one raises.

    Done, it leaves as dsrun's ranks do: a thread of async_io may still hold a tensor that it has read or written, and
    letting go of it aborts a process that Python takes apart meanwhile (3 of 100 on a busy machine).
    """
    guard = """
import deepspeed.ops.op_builder.builder as b
def jit(self, verbose=True):
    raise AssertionError(f"{self.name} would be compiled")
b.OpBuilder.jit_load = jit
"""
    leave = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
    environ = {
        "PATH": str(clean / "bin"),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "HOME": str(clean),
        **env,
    }
    done = subprocess.run(
        [str(clean / "bin/python"), "-c", guard + code + leave],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_wheel_contains_requested_ops(real):
    """The wheel holds the ops that were asked for; its record and its log have what was compiled for it."""
    _, out = real
    wheel = Path(out.strip())
    report = read_wheel(wheel)
    assert set(report.installed_ops) == BUILT_OPS
    assert {lib.op for lib in report.libraries} == set(report.installed_ops)
    assert report.accelerator == "cpu"
    assert json.loads((wheel.parent / "WHEEL.json").read_text())["seconds"]["builds"].keys() == BUILDS
    assert "building 'deepspeed.ops.adam.cpu_adam_op' extension" in (wheel.parent / "build.log").read_text()


def test_wheel_of_compiled_operations_is_the_same(real, sdist, tmp_path):
    """The code of today asks for the same operations, takes all of them from the parts, says so, and makes the same
    wheel, with a record of it and nothing beside it."""
    made, out = real
    again = with_sdist(tmp_path, sdist)
    parts = again.cache / "wheels/parts"
    shutil.copytree(made.cache / "wheels/parts", parts)
    before = {each.name for each in parts.iterdir()}
    assert len(before) == len(BUILDS)
    code, printed, err = again.run(*ARGUMENTS)
    assert code == 0, err
    assert set(re.findall(r"^(.+): compiled before, for another wheel$", err, re.MULTILINE)) == BUILDS
    wheel = Path(again.folder, printed.strip())
    assert {each.name for each in parts.iterdir()} == before
    assert list(again.scratch.iterdir()) == []
    kept_wheel = Path(out.strip())
    assert (wheel.name, sha256_of(wheel)) == (kept_wheel.name, sha256_of(kept_wheel))
    record = json.loads((wheel.parent / "WHEEL.json").read_text())
    assert record["version"] == 1
    assert record["sha256"] == sha256_of(wheel) == read_wheel(wheel).sha256
    assert record["inputs"]["ops"] == record["ops"]["asked"] == record["ops"]["built"]
    assert set(record["ops"]["built"]) == BUILT_OPS
    assert record["size"] == wheel.stat().st_size < 4_000_000
    assert record["seconds"]["builds"] == {}


def test_default_wheel_is_proved(real):
    """Every operation of the wheel that a user gets runs once and computes what its reference does."""
    _, out = real
    command = [sys.executable, "-m", "dsrun", "verify-wheel", out.strip(), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    told = json.loads(done.stdout)
    assert [each for each in told["findings"] if each["level"] != "info"] == []
    results = {each["op"]: each["result"] for each in told["operations"]}
    assert results == dict.fromkeys(BUILT_OPS, "ran") | {"deepspeed_shm_comm": "loaded"}


def test_wheel_build_progress_names_files_and_time_left(real):
    """What the code of today says of the lines that the compilers have printed for the kept wheel."""
    _, out = real
    said: list[str | None] = []
    tracker = BuildTracker(
        weights=dict.fromkeys(BUILDS, 1.0), libraries={each: len(each.split("+")) for each in BUILDS}
    )
    with (Path(out.strip()).parent / "build.log").open("rb") as lines:
        follow(lines, StringIO(), tracker, lambda event, _: said.append(line_of(event, tracker, monotonic())), {})
    text = "\n".join(filter(None, said))
    assert re.search(r"^cpu_adam: 1 of 2 files, cpu_adam(_impl)?\.cpp; about .* left$", text, re.MULTILINE)
    assert re.search(r"^cpu_adam: done in ", text, re.MULTILINE)


def test_wheel_build_cache_hit_compiles_nothing(real):
    """An unchanged request compiles nothing."""
    made, first = real
    wheel = Path(first.strip())
    before = wheel.stat()
    code, out, err = made.run(*ARGUMENTS)
    assert (code, out) == (0, first)
    assert "compiling" not in err
    assert wheel.stat().st_mtime_ns == before.st_mtime_ns


def test_prebuilt_cpu_adam_steps_equal_torch_adamw(clean):
    """CPU Adam from the wheel steps like torch's AdamW, and nothing is compiled."""
    out = in_clean(
        clean,
        """
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
torch.manual_seed(0)
start = [torch.randn(997), torch.randn(64, 33)]
def trained(make):
    weights = [torch.nn.Parameter(each.clone()) for each in start]
    optimizer = make(weights)
    for step in range(20):
        for number, weight in enumerate(weights):
            weight.grad = torch.sin(weight.detach() * (step + 1) + number)
        optimizer.step()
    return weights
options = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
ours = trained(lambda w: DeepSpeedCPUAdam(w, adamw_mode=True, **options))
theirs = trained(lambda w: torch.optim.AdamW(w, **options))
print(max((a - b).abs().max().item() for a, b in zip(ours, theirs)))
print(min((a - b).abs().max().item() for a, b in zip(ours, start)))
""",
    )
    difference, moved = map(float, out.splitlines()[-2:])
    assert difference < 1e-5
    assert moved > 0.01


@pytest.mark.skipif(not LIBAIO, reason="needs libaio-dev; unit tests say what is said without it")
def test_prebuilt_async_io_writes_and_reads_file(clean, tmp_path):
    out = in_clean(
        clean,
        f"""
import torch
from deepspeed.ops.op_builder import AsyncIOBuilder
handle = AsyncIOBuilder().load().aio_handle(4096, 2, False, False, 1)
data = torch.arange(8192, dtype=torch.uint8)
assert handle.sync_pwrite(data, {str(tmp_path / "file")!r}, 0) == 1
back = torch.zeros_like(data)
assert handle.sync_pread(back, {str(tmp_path / "file")!r}, 0) == 1
print(torch.equal(data, back))
""",
    )
    assert out.splitlines()[-1] == "True"
    assert (tmp_path / "file").stat().st_size == 8192


@pytest.fixture
def compiling_nothing(clean, tmp_path):
    """The flags of `dsrun()` for a run in that environment; afterwards, that torch has compiled nothing meanwhile."""
    extensions = tmp_path / "extensions"  # where torch puts whatever it compiles while a program runs
    extensions.mkdir()
    env = {
        "TORCH_EXTENSIONS_DIR": str(extensions), "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    yield {"env": env, "python": str(clean / "bin/python")}
    assert [path for path in extensions.iterdir() if path.is_dir()] == []


@pytest.mark.train
def test_training_with_prebuilt_wheel_compiles_nothing(compiling_nothing, tmp_path, tiny, pairs):
    """Two ranks under ZeRO-2 with the optimizer on the CPU: shm_comm and cpu_adam, both from the wheel."""
    flags = [
        "--model", tiny["t5"], "--train-file", pairs["train"], "--zero", "2", "--offload", "cpu", *SHORT,
        "--max-steps", "2", "--nproc", "2",
    ]  # fmt: skip
    done = dsrun(*flags, output=tmp_path / "run", **compiling_nothing).ok()
    assert "+cputorch" in json.loads((done.folder / "run.json").read_text())["versions"]["deepspeed"]


@pytest.mark.train
@pytest.mark.skipif(not LIBAIO, reason="needs libaio-dev, as DeepSpeed's async_io does")
def test_nvme_offload_optimizer_states_checkpoint_saved_twice(compiling_nothing, tiny, pairs, tmp_path):
    """DeepSpeed issue 7549: the copy of the swap files dies in a folder that has one already."""
    run = RunFolder(tmp_path / "run")
    flags = [
        "--model", tiny["llama"], "--zero", "3", "--offload", "nvme", "--nvme-path", str(tmp_path / "swap"),
        "--train-file", pairs["train"], *SHORT, "--max-steps", "4", "--save-steps", "2", "--nproc", "2",
    ]  # fmt: skip
    dsrun(*flags, output=run.path, **compiling_nothing).ok()
    assert [step for step, _ in run.checkpoints()] == [4, 2]
    for _, checkpoint in run.checkpoints():
        assert verify(checkpoint) == []
    # The same step once more, as a run does that was killed before its next save.
    dsrun(*flags, "--resume", str(run.checkpoint(2)), output=run.path, **compiling_nothing).ok()
    assert verify(run.checkpoint(4)) == []


@pytest.mark.train
@pytest.mark.skipif(not LIBAIO, reason="needs libaio-dev, as DeepSpeed's async_io does")
def test_nvme_offload_shipped_config_runs_engine_steps(compiling_nothing, tmp_path):
    """With async_io from the wheel. The weights are smaller than a block, so that none of them is written."""
    config = json.loads((data_folder("ds_configs") / "zero3_nvme.json").read_text())
    for block in ("offload_optimizer", "offload_param"):
        assert config["zero_optimization"][block]["device"] == "nvme"
        config["zero_optimization"][block]["nvme_path"] = str(tmp_path)
    cases = [{"name": "nvme", "config": config, "target": "trainer"}]
    python, env = compiling_nothing["python"], compiling_nothing["env"]
    engine = many_engines(cases, tmp_path, python=python, more=env)["nvme"]
    assert engine["optimizer"] == "DeepSpeedZeroOptimizer_Stage3"
    assert engine["basic"] == "DeepSpeedCPUAdam"
    assert engine["moved"]
    assert engine["steps"] == 3
    folders = {each.name for each in (tmp_path / "zero_stage_3").iterdir()}
    # The Trainer turns bf16 on where the CPU computes in it.
    assert folders in ({"optimizer", "bfloat16params"}, {"optimizer", "float32params"})
