"""What a Python environment's torch was built for, read from its files: importing it would take seconds."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

from dsrun.errors import ToolError
from dsrun.system.capture import ask

_ASK_S = 60.0
# Printed on lines of their own behind a mark, since a site's startup files may print too. find_spec imports nothing.
_QUESTION = """
import importlib.util as u, sys, sysconfig
sys.path[:] = [place for place in sys.path if place]
spec = u.find_spec("torch")
print("dsrun:", spec.origin if spec and spec.origin else "")
print("dsrun:", sys.implementation.cache_tag)
print("dsrun:", sysconfig.get_path("purelib"))
"""
_LINES = 3
# In the names of c10's functions that take a std::string when it was compiled with the new string ABI.
_NEW_ABI = b"ENSt7__cxx1112basic_string"


@dataclass(frozen=True, kw_only=True)
class TorchFacts:
    """The torch of one environment.

    `version` in full ("2.13.0+cu130"); `cuda` and `hip` the versions it was built with, None without;
    `python_tag` of its interpreter ("cp311"); `cxx11_abi` the string ABI; `path` its package folder.
    """

    version: str
    cuda: str | None
    hip: str | None = None
    python_tag: str
    cxx11_abi: bool
    path: Path

    @property
    def site_packages(self) -> Path:
        """The folder it is installed in, where its NVIDIA packages are too."""
        return self.path.parent

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version; operations compiled against another pair are not used."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def torch_facts(python: str = sys.executable) -> TorchFacts | None:
    """The torch that interpreter `python` would import; None when it has none.

    Raises MissingError when there is no such interpreter, ToolError when it does not run or its torch cannot be read.
    """
    found = _look(python)
    if found is None:
        return None
    path, tag = found
    values = _assigned(path / "version.py")
    version = values.get("__version__")
    if version is None:
        raise ToolError(
            f"{path} does not say its version", fix=f"install torch again: {python} -m pip install torch"
        )
    return TorchFacts(
        version=version,
        cuda=values.get("cuda"),
        hip=values.get("hip"),
        python_tag=tag,
        cxx11_abi=_new_abi(path),
        path=path,
    )


def _look(python: str) -> tuple[Path, str] | None:
    """Where `python` finds torch, and the interpreter's tag."""
    answer = ask([python, "-c", _QUESTION], seconds=_ASK_S)
    lines = [line[6:].strip() for line in answer.stdout.splitlines() if line.startswith("dsrun:")]
    if answer.exit_code or len(lines) != _LINES:
        said = answer.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise ToolError(f"{python} did not answer: {said[0]}", fix="name a working Python interpreter")
    origin, tag = lines[0], lines[1].replace("cpython-", "cp")
    return (Path(origin).parent, tag) if origin else None


def _assigned(path: Path) -> dict[str, str]:
    """String values assigned at the top of Python file `path`, annotated or not; nothing is executed."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    values: dict[str, str] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            values.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    return values


def _new_abi(path: Path) -> bool:
    """Whether torch was compiled with the C++11 string ABI; all PyTorch releases since 2.7 are."""
    try:
        return _NEW_ABI in (path / "lib/libc10.so").read_bytes()
    except OSError:
        return True
