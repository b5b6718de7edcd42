"""Host compilers, and what a torch was built for: those of this machine, and small ones that print the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.machine.torch_facts import torch_facts
from dsrun.wheel.compile.plan import jobs
from dsrun.wheel.platform import cxx as compilers
from dsrun.wheel.platform.cxx import (
    all_cxx,
    c_compiler,
    compiler_cache,
    find_cxx,
    has_function,
    has_header,
    install_command,
)
from dsrun.wheel.platform.wheel_package import wheel_package
from tests.fake_programs import path_of, program

GIB = 1 << 30
TORCH = """from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda!r}
git_version = 'cf30153'
hip: Optional[str] = None
raise SystemExit("this file was executed")
"""


def test_cxx_of_this_host():
    cxx = find_cxx(os.environ)
    said = subprocess.run([cxx.path, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=True)
    assert cxx.version == said.stdout.strip()
    assert cxx in all_cxx(os.environ)
    plain = c_compiler(cxx)
    assert plain is not None
    assert compilers.predefined(plain)


def pretend(path: Path, macros: str) -> Path:
    return program(path, f"cat <<END\n{macros}\nEND")


def gcc(path: Path, major: int) -> Path:
    numbers = f"#define __GNUC__ {major}\n#define __GNUC_MINOR__ 2\n#define __GNUC_PATCHLEVEL__ 1"
    return pretend(path, f"{numbers}\n#define __cplusplus 201703L")


def test_cxx_kind_from_macros_not_name(tmp_path):
    """Its name does not decide what a compiler is."""
    macros = "#define __GNUC__ 4\n#define __cplusplus 201703L\n#define __clang_major__ 19\n#define __clang_minor__ 1"
    pretend(tmp_path / "g++", macros)
    found = find_cxx({"PATH": f"{tmp_path}:/usr/bin:/bin", "CXX": "g++"})
    assert (found.kind, found.version, found.major) == ("clang", "19.1.0", 19)


def test_cxx_precedence_flag_variable_path(tmp_path):
    gcc(tmp_path / "one/g++-14", 14)
    gcc(tmp_path / "one/c++", 11)
    gcc(tmp_path / "other", 13)
    environ = path_of(tmp_path / "one")
    assert find_cxx(environ).major == 11
    assert find_cxx({**environ, "CXX": "ccache g++-14"}).major == 14
    assert find_cxx({**environ, "CXX": "g++-14"}, str(tmp_path / "other")).major == 13
    assert {cxx.major for cxx in all_cxx(environ)} >= {11, 14}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("g++-99", "is not there"),
        ("/usr/bin/env", "not a C"),
        ("g++ -O2", "not one program.*without flags"),
        ("g++'", "is not there"),
        ("n" * 5000, "is not there"),
    ],
)
def test_named_cxx_must_be_a_compiler(name, words):
    with pytest.raises(UsageError, match=words):
        find_cxx(os.environ, name)


def test_no_cxx_found(tmp_path):
    with pytest.raises(MissingError, match="no C") as raised:
        find_cxx({"PATH": str(tmp_path)})
    assert "g++" in raised.value.fix


def test_header_and_function_checks_compile(tmp_path):
    """Whether a header or function is there is compiled, not guessed."""
    cxx = find_cxx(os.environ)
    assert has_header(cxx, "vector")
    assert not has_header(cxx, "no/such/header.h")
    (tmp_path / "mine.h").write_text("\n")
    assert not has_header(cxx, "mine.h")
    assert has_header(cxx, "mine.h", include=[tmp_path])
    assert has_function(cxx, "cos", "m")
    assert not has_function(cxx, "no_such_function_anywhere", "m")
    assert not has_function(cxx, "cos", "no_such_library")


def test_full_disk_is_no_missing_library(tmp_path):
    """The compiler's temporary files find no room: installing the library would not help."""
    full = program(tmp_path / "g++", "echo 'fatal error: /tmp/cc1.s: No space left on device' >&2; exit 1")
    with pytest.raises(ToolError, match="no space left"):
        has_function(compilers.CxxCompiler(path=full, kind="gcc", version="12.2.0"), "cos", "m")


def test_compiler_cache(tmp_path):
    environ = path_of(tmp_path)
    here = compiler_cache({"PATH": str(tmp_path)})
    assert here is None
    program(tmp_path / "sccache", "")
    assert compiler_cache({"PATH": str(tmp_path)}) == tmp_path / "sccache"
    program(tmp_path / "ccache", "")
    assert compiler_cache(environ) == tmp_path / "ccache"
    assert compiler_cache({**environ, "CCACHE_DISABLE": "1"}) is None


@pytest.mark.parametrize(
    ("package", "cores", "memory", "kernels", "expected"),
    [
        ("deepspeed", 16, 64, True, 16),
        ("deepspeed", 64, 64, True, 16),
        ("deepspeed", 8, 6, True, 1),
        ("deepspeed", 8, 1, True, 1),
        ("deepspeed", 8, 6, False, 4),
        ("deepspeed", 2, 64, False, 2),
        ("flash-attn", 64, 64, True, 7),
        ("flash-attn", 4, 64, True, 4),
    ],
)
def test_parallel_compile_jobs(package, cores, memory, kernels, expected):
    assert jobs(cores, memory * GIB, wheel_package(package).job_bytes(kernels=kernels)) == expected


def test_install_command_can_be_pasted():
    assert install_command("pip", "cuda-toolkit[nvcc]==13.0.*") == "pip install 'cuda-toolkit[nvcc]==13.0.*'"
    assert install_command("apt", "a b").removeprefix("sudo ") == "apt-get install a b"


# --- torch ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path):
    """A Python environment with a torch that must not be imported."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env/bin/python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = Path(subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip())

    def install(text: str, library: bytes | None = None) -> Path:
        (purelib / "torch/lib").mkdir(parents=True, exist_ok=True)
        (purelib / "torch/__init__.py").write_text("raise SystemExit('torch was imported')\n")
        (purelib / "torch/version.py").write_text(text)
        if library is not None:
            (purelib / "torch/lib/libc10.so").write_bytes(library)
        return purelib

    return str(python), install


def test_torch_facts_of_other_environment(environment):
    python, install = environment
    assert torch_facts(python) is None
    purelib = install(TORCH.format(version="2.6.0+cu124", cuda="12.4"), b"_ZN3c105ErrorC2ESs")
    facts = torch_facts(python)
    assert (facts.version, facts.cuda, facts.hip, facts.release) == ("2.6.0+cu124", "12.4", None, (2, 6))
    assert (facts.path, facts.site_packages) == (purelib / "torch", purelib)
    assert facts.python_tag == f"cp{sys.version_info.major}{sys.version_info.minor}"
    install(TORCH.format(version="2.13.0", cuda=None), b"_ZN3c105ErrorC2ENSt7__cxx1112basic_stringIcE")
    assert torch_facts(python).cuda is None


def test_torch_facts_of_unreadable_torch(environment):
    python, install = environment
    install("__version__ = broken(")
    with pytest.raises(ToolError, match="does not say its version"):
        torch_facts(python)


def test_torch_facts_of_missing_interpreter(tmp_path):
    with pytest.raises(MissingError):
        torch_facts(str(tmp_path / "python"))
    with pytest.raises(ToolError, match="did not answer: out of order"):
        torch_facts(str(program(tmp_path / "broken", "echo 'out of order' >&2; exit 1")))


def test_torch_facts_agree_with_torch():
    values = "torch.__version__, torch.version.cuda, torch.__path__[0]"
    code = f"import torch; print({values})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    facts = torch_facts()
    assert [facts.version, str(facts.cuda), str(facts.path)] == said
