"""The file of the plugin that --plugin names: found and read, not run, so that a wrong name costs no start."""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path

from dsrun.errors import UsageError, did_you_mean

_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class PluginFile:
    """Where the class of --plugin is: `files` are that of its module and those of the user's own that it imports,
    `sha256` is a digest of them all."""

    named: str
    module: str
    class_name: str
    files: tuple[Path, ...]
    sha256: str

    @property
    def path(self) -> Path:
        return self.files[0]


def find_plugin(named: str) -> PluginFile:
    """The file of `module:Class`. Raises UsageError where there is no such module or class, or it is not Python."""
    module, colon, class_name = named.partition(":")
    is_name = all(part.isidentifier() for part in [*module.split("."), class_name])
    if not colon or not is_name or module.endswith(".py"):
        stem = module.removesuffix(".py").replace("/", ".").strip(".")
        raise UsageError(f"--plugin {named} is not module:Class", fix=f"--plugin {stem}:{class_name or 'MyPlugin'}")
    path = _file_of(module, search_path())
    if path is None:
        what = f"--plugin {named}: there is no module {module} in {Path.cwd()} or in Python's path"
        raise UsageError(what, fix="call dsrun in its folder, or set PYTHONPATH")
    names = _top_level_names(_parsed(path, named).body)
    if class_name not in names and "*" not in names:
        raise UsageError(f"--plugin {named}: {shown(path)} has no {class_name}", fix=did_you_mean(class_name, names))
    files = tuple(_with_imports(path, module, named))
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return PluginFile(named, module, class_name, files, digest.hexdigest())


def search_path() -> list[str]:
    """Python's path, with the working folder, as `python -m` has it and the command `dsrun` has not."""
    here = str(Path.cwd())
    return sys.path if here in sys.path or "" in sys.path else [here, *sys.path]


def shown(path: Path) -> str:
    """A file as messages name it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _file_of(module: str, path: Sequence[str] | None) -> Path | None:
    """The source of a module; no package is imported on the way to it."""
    name = ""
    found = None
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        found = PathFinder.find_spec(name, path)
        if found is None:
            return None
        path = list(found.submodule_search_locations or ())
    origin = found.origin if found else None
    return Path(origin).absolute() if origin and origin.endswith(".py") else None


def _parsed(path: Path, named: str) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise UsageError(f"--plugin {named}: {shown(path)}:{error.lineno}: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"--plugin {named}: {shown(path)} cannot be read: {error}") from error


def _top_level_names(body: Iterable[ast.AST]) -> set[str]:
    """The names that statements of a module define, "*" among them where they may define any."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef):
            names.add("*" if node.name == "__getattr__" else node.name)
        else:
            # A name may be assigned, also under a condition.
            names |= _top_level_names(ast.iter_child_nodes(node))
    return names


def _with_imports(path: Path, module: str, named: str) -> Iterator[Path]:
    """The file, and those that it imports, directly or not, from its package or from the folder that it is in; the
    packages that are installed beside it are not the user's own."""
    package = module.partition(".")[0] if "." in module or path.name == "__init__.py" else None
    root = path.parents[module.count(".") + (path.name == "__init__.py")]
    is_installed = root.name in _INSTALLED
    seen: set[Path] = set()
    waiting = [(module, path)]
    while waiting:
        current, file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        yield file
        for wanted in sorted(_imports(_parsed(file, named), current, is_package=file.name == "__init__.py")):
            found = None if is_installed and wanted.partition(".")[0] != package else _file_of(wanted, [str(root)])
            if found:
                waiting.append((wanted, found))


def _imports(tree: ast.Module, module: str, *, is_package: bool) -> set[str]:
    """The modules that a module's source may import, with the packages that they and it are in; what is imported from
    one may be a module itself."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # One dot is the package that a module is in, and the package itself for its __init__.py.
            parts = module.split(".")
            above = parts[: len(parts) + is_package - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            found |= {f"{base}.{alias.name}".lstrip(".") for alias in node.names}
    return {each for name in {module, *found} for each in accumulate(name.split("."), "{}.{}".format)}
