"""The torch of a Python environment, read without importing it: its versions, and where it is."""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

from dsrun.errors import ToolError
from dsrun.system.process.proc import capture

_TIMEOUT_S = 60.0
# Printed on lines of their own behind a mark, since a site's startup files may print too. find_spec imports nothing.
# With -c the first place is the current folder, in which something called torch may lie.
_QUESTION = """
import importlib.util as u, sys, sysconfig
sys.path[:] = [place for place in sys.path if place]
spec = u.find_spec("torch")
print("dsrun:", spec.origin if spec and spec.origin else "")
print("dsrun:", sys.implementation.cache_tag)
print("dsrun:", sysconfig.get_path("purelib"))
"""
_LINES = 3


@dataclass(frozen=True, kw_only=True)
class TorchFacts:
    """The torch of one environment.

    `version` in full ("2.13.0+cu130"); `cuda` and `hip` the versions it was built with, None without;
    `python_tag` of its interpreter ("cp311"); `path` its package folder."""

    version: str
    cuda: str | None
    hip: str | None = None
    python_tag: str
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
    answer = capture([python, "-c", _QUESTION], seconds=_TIMEOUT_S)
    lines = [line[6:].strip() for line in answer.stdout.splitlines() if line.startswith("dsrun:")]
    if answer.returncode or len(lines) != _LINES:
        last_line = answer.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise ToolError(f"{python} did not answer: {last_line[0]}", fix="name a working Python interpreter")
    if not lines[0]:
        return None
    path = Path(lines[0]).parent
    facts = facts_at(path, lines[1].replace("cpython-", "cp"))
    if facts is None:
        raise ToolError(f"{path} does not say its version", fix=f"install torch again: {python} -m pip install torch")
    return facts


def facts_at(path: Path, tag: str) -> TorchFacts | None:
    """The torch whose package folder is `path`, of an interpreter with this tag; None where it cannot be read."""
    values = _assigned(path / "version.py")
    version = values.get("__version__")
    if version is None:
        return None
    return TorchFacts(version=version, cuda=values.get("cuda"), hip=values.get("hip"), python_tag=tag, path=path)


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
