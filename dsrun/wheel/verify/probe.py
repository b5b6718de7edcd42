"""What a machine and one Python environment on it offer a compiled wheel, printed as one JSON object.

A program of its own that needs nothing but Python: it is sent to nodes and run by the interpreter in question
(`python - libaio.so.1 … < probe.py`), where dsrun need not be installed. torch is found but not imported. The
arguments are the libraries a wheel needs; those that the loader would not find come back as `absent`."""

import ctypes
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
OLDEST_PYTHON = (3, 10)
"""With what dsrun sends to other environments; an older one must be told before it meets a `def` below."""
if sys.version_info < OLDEST_PYTHON:
    sys.exit(
        "Python {}.{} is too old, name one from {}.{} on with --python".format(*sys.version_info[:2], *OLDEST_PYTHON)
    )
_SYSTEM_FOLDERS = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib")


def read(path: Path) -> str:
    """A text file's content; nothing when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def torch_folder() -> Path | None:
    spec = find_spec("torch")
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def torch_facts() -> dict[str, object]:
    """torch's version, CUDA and C++ ABI from its files."""
    folder = torch_folder()
    text = read(folder / "version.py") if folder else ""
    version = re.search(r"^__version__ *(?::[^=]*)?= *['\"]([^'\"]+)", text, re.MULTILINE)
    cuda = re.search(r"^cuda *(?::[^=]*)?= *['\"]([^'\"]+)", text, re.MULTILINE)
    return {
        "torch": version[1] if version else None,
        "torch_cuda": cuda[1] if cuda else None,
        "cxx11_abi": cxx11_abi(folder / "lib/libc10.so") if folder else None,
    }


def cxx11_abi(library: Path) -> bool | None:
    """Whether a C++ library uses the std::string of GCC 5 and later."""
    try:
        return b"__cxx11" in library.read_bytes()
    except OSError:
        return None


def gpu_facts() -> dict[str, object]:
    """The driver and the GPUs a process would see, asked of the driver's library itself."""
    driver = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.[\d.]+)", read(Path("/proc/driver/nvidia/version")))
    facts: dict[str, object] = {"driver": driver[1] if driver else None, "driver_cuda": None, "gpus": []}
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return facts
    version = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value:
        facts["driver_cuda"] = f"{version.value // 1000}.{version.value % 1000 // 10}"
    count = ctypes.c_int()
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
        facts["gpus"] = [one_gpu(cuda, index) for index in range(count.value)]
    return facts


def one_gpu(cuda: ctypes.CDLL, index: int) -> dict[str, object]:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return {"name": name.value.decode(errors="replace"), "capability": [major.value, minor.value]}


def cpu_flags() -> list[str]:
    """The instruction-set flags of the first processor."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", read(Path("/proc/cpuinfo")), re.MULTILINE)
    return sorted(found[1].split()) if found else []


def search_folders() -> list[Path]:
    """Where the loader finds libraries once torch is imported: it loads its own and those of the nvidia packages."""
    torch = torch_folder()
    own = [torch / "lib", *torch.parent.glob("nvidia/*/lib")] if torch else []
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    return [
        *(Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder),
        *own,
        Path(sys.base_prefix, "lib"),
        *(Path(folder, multiarch) for folder in _SYSTEM_FOLDERS),
        *(Path(folder) for folder in _SYSTEM_FOLDERS),
    ]


def cached_libraries() -> set[str]:
    """The names in the loader's cache."""
    for ldconfig in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        try:
            answer = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False)
        except OSError:
            continue
        return {line.split()[0] for line in answer.stdout.splitlines()[1:] if line.strip()}
    return set()


def library_path(name: str) -> Path | None:
    """The file that `name` is, in the folders of `search_folders`."""
    return next((folder / name for folder in search_folders() if (folder / name).exists()), None)


def absent(names: list[str]) -> list[str]:
    """Those of `names` that the loader would not find."""
    known = cached_libraries() if names else set()
    return [name for name in names if name not in known and library_path(name) is None]


def glibcxx() -> str | None:
    """The highest symbol version of the C++ library: "3.4.30"."""
    path = library_path("libstdc++.so.6")
    if path is None:
        return None
    found = re.findall(rb"\0GLIBCXX_(\d+(?:\.\d+)+)(?=\0)", path.read_bytes())
    numbers = [tuple(int(part) for part in each.split(b".")) for each in found]
    return ".".join(map(str, max(numbers))) if numbers else None


def facts(needed: list[str]) -> dict[str, object]:
    libc, version = platform.libc_ver()
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return {
        "node": platform.node(),
        "python": python,
        "abi": f"{python}t" if sysconfig.get_config_var("Py_GIL_DISABLED") else python,
        "python_version": platform.python_version(),
        "machine": platform.machine(),
        "glibc": version if libc == "glibc" else None,
        "glibcxx": glibcxx(),
        **torch_facts(),
        **gpu_facts(),
        "cpu_flags": cpu_flags(),
        "absent": absent(needed),
    }


if __name__ == "__main__":
    print(json.dumps(facts(sys.argv[1:])))
