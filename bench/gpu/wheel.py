"""Builds the wheel of DeepSpeed's operations for these GPUs, unless it is cached, and installs it here."""

from __future__ import annotations

import subprocess
import sys


def main() -> int:
    """pip's or the build's exit code."""
    build = [sys.executable, "-m", "dsrun", "build-wheel", "--arch", "auto"]
    built = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        return built.returncode
    wheel = built.stdout.strip().splitlines()[-1]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return subprocess.run([*pip, "--no-deps", "--force-reinstall", wheel], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
