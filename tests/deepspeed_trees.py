"""A source tree with the outline of DeepSpeed's, for tests of where sources come from."""

from __future__ import annotations

WHEN = 1_700_000_000
# Tells whoever runs it: nothing of an sdist may run before its hash was compared.
SETUP = """
import os, pathlib
pathlib.Path(os.environ["MARK"]).write_text("it ran " + os.environ.get("DS_BUILD_OPS", "unset"))
from setuptools import setup
setup(name="deepspeed", version={version!r})
"""


def content(version: str) -> dict[str, bytes]:
    top = f"deepspeed-{version}"
    return {
        f"{top}/setup.py": SETUP.format(version=version).encode(),
        f"{top}/version.txt": f"{version}\n".encode(),
        f"{top}/PKG-INFO": f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {version}\n".encode(),
        f"{top}/op_builder/__init__.py": b"",
    }
