"""Everything that goes into a wheel, as plain values: its key in the store and its local version follow from it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

from packaging.version import Version

RECIPE = "1"
"""Version of the way dsrun builds. Raise it when the same inputs give other bytes than before."""

_KEY_DIGITS = 20


@dataclass(frozen=True, kw_only=True)
class Request:
    """One wheel. Two requests are equal exactly when their wheels may be exchanged for one another.

    deepspeed: version as in its version.txt; source: digest of its sources; label: "" or how another than a released
    source is marked in a local version ("patched.1a2b3c"). torch: full version; cuda: CUDA that torch was built for,
    nvcc: version of the compiler, both "" on CPU. python: interpreter tag ("cp311"). platform: kernel, machine and C
    library. archs: TORCH_CUDA_ARCH_LIST as DeepSpeed takes it ("8.0;9.0+PTX"), "" on CPU. ops: names, sorted. cpu:
    instruction set of the host code. compiler: kind and version of the C++ compiler. symbols: whether debug symbols
    stay in. environment: search paths of headers and libraries that the compilers saw.
    """

    deepspeed: str
    source: str
    label: str = ""
    torch: str
    cuda: str = ""
    nvcc: str = ""
    python: str
    platform: str
    accelerator: Literal["cuda", "cpu"]
    archs: str = ""
    ops: tuple[str, ...]
    cpu: str
    compiler: str
    symbols: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    recipe: str = RECIPE

    def as_dict(self) -> dict[str, Any]:
        """The inputs as plain JSON values, in the order of the fields."""
        return asdict(self) | {"ops": list(self.ops), "environment": dict(self.environment)}

    @property
    def key(self) -> str:
        """Name of the request in the store: the first 20 hexadecimal digits of the inputs' SHA-256."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]

    @property
    def local_version(self) -> str:
        """Local version that tells wheels apart by name: "cu130torch2.13.sm80.sm90", "cputorch2.13.x8664v3".

        Only letters, digits and dots, and numbers without zeros in front, as PEP 440 wants it: setuptools rewrites
        others, and the version in the file's name would then differ from the one asked for.
        """
        torch = ".".join(re.findall(r"\d+", self.torch)[:2])
        if self.accelerator == "cuda":
            parts = [f"cu{self.cuda.replace('.', '')}torch{torch}", *map(_arch_word, self.archs.split(";"))]
        else:
            # The digest behind "native." is for the key; two machines' wheels are not told apart by name.
            level = "native" if self.cpu.startswith("native.") else self.cpu
            parts = [f"cputorch{torch}", re.sub(r"[^a-z0-9]", "", level.lower())]
        return str(Version("0+" + ".".join(filter(None, [*parts, self.label]))).local)


def _arch_word(arch: str) -> str:
    """`9.0+PTX` is sm90ptx: code for 9.0 and PTX that later GPUs can compile."""
    return "sm" + arch.replace(".", "").replace("+PTX", "ptx")
