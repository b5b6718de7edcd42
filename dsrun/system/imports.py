"""Heavy imports, made cheaper, and some put off."""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextmanager
def without_collections() -> Iterator[None]:
    """For imports: what they make stays, and looking through it again and again is a fifth of the time of importing
    torch, transformers and DeepSpeed. Later collections leave it alone, too: in forks, they would write to, and so
    copy, every page of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


@contextmanager
def deferred(*packages: str) -> Iterator[None]:
    """Inside, these packages are not imported by those that import them: names taken from them are looked up when they
    are first used, afterwards. Packages imported before are left as they are."""
    finder = _DeferringFinder(tuple(name for name in packages if name not in sys.modules))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.defers(name)]:
            del sys.modules[name]


class _DeferringFinder(MetaPathFinder, Loader):
    """Finds and loads modules that stand for those of `packages`."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def defers(self, name: str) -> bool:
        return name.partition(".")[0] in self._packages

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if not self.defers(name) or not self._exists(name):
            return None
        return ModuleSpec(name, self, is_package=True)

    def _exists(self, name: str) -> bool:
        """Whether the package is installed; of its modules that is found out on use."""
        if "." in name:
            return True
        others = (finder for finder in sys.meta_path if finder is not self)
        return any(finder.find_spec(name, None) for finder in others)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__

        def look_up(attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(f"module {name!r} has not been imported")
            later = _Deferred(name, (attribute,))
            return later if sys.modules.get(name) is module else later._value()

        module.__getattr__ = look_up  # type: ignore[method-assign]


class _Deferred:
    """What `attributes` of a module are, found out when it is called, or compared with a type."""

    def __init__(self, module: str, attributes: tuple[str, ...]) -> None:
        self._module = module
        self._attributes = attributes

    def _value(self) -> Any:
        return reduce(getattr, self._attributes, import_module(self._module))

    def __getattr__(self, name: str) -> "_Deferred":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Deferred(self._module, (*self._attributes, name))

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._value()(*args, **options)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._value())

    def __subclasscheck__(self, cls: type) -> bool:
        return issubclass(cls, self._value())
