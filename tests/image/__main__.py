"""`python -m tests.image [PYTEST ARGUMENTS]`: install debootstrap, where root may, and run the tests of the image.

Exit code 4 when something is missing that cannot be installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.slurm.packages import install


def missing() -> str | None:
    """One line on what keeps an image from being built here; None when nothing does."""
    if os.geteuid() != 0:
        return "the steps of a Dockerfile need root (sudo make test-image)"
    if shutil.which("debootstrap") is None:
        return "not installed: debootstrap (apt-get install --no-install-recommends debootstrap)"
    overlay = (
        "d=$(mktemp -d -p /var/tmp) && mkdir $d/l $d/u $d/w && mount -t overlay overlay -o lowerdir=$d/l,upperdir="
    )
    overlay += "$d/u,workdir=$d/w $d/l; code=$?; umount $d/l; rm -r $d; exit $code"
    argv = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "sh", "-c", overlay]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"no overlay can be mounted here ({done.stderr.strip()}; a container needs --privileged)"
    return None


def main(arguments: list[str]) -> int:
    """Run the tests; pytest's exit code, or 4."""
    if os.geteuid() == 0 and shutil.which("debootstrap") is None:
        try:
            install(["debootstrap"])
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"error: apt-get: {error}", file=sys.stderr)
    if reason := missing():
        print(f"error: the tests of the image cannot run: {reason}", file=sys.stderr)
        return 4
    return int(pytest.main(["tests/image", *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
