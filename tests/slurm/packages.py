"""What the tests on several machines (of SLURM, behind ssh, pods) need of the system, and what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

# Debian package -> a program or, with a slash, a file that comes with it.
PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurm-client": "sbatch",
    "slurmdbd": "slurmdbd",
    "slurm-wlm-mysql-plugin": "/usr/lib/*/slurm-wlm/accounting_storage_mysql.so",
    "mariadb-server-core": "mariadbd",
    "munge": "munged",
    "iproute2": "ip",
    "util-linux": "setpriv",
    "procps": "ps",
    "openssh-server": "sshd",
    "openssh-client": "ssh",
}
FOR_PODS = {package: PACKAGES[package] for package in ("iproute2", "util-linux", "procps")}
SEARCHED = "/usr/sbin:/usr/bin:/sbin:/bin"


def missing_packages(needed: Mapping[str, str] = PACKAGES) -> list[str]:
    """The Debian packages that are not installed."""
    return [package for package, proof in needed.items() if not _there(proof)]


def missing(needed: Mapping[str, str] = PACKAGES) -> str | None:
    """One line on what keeps a cluster from being brought up here; None when nothing does."""
    if lacking := missing_packages(needed):
        return f"not installed: {', '.join(lacking)} (apt-get install --no-install-recommends {' '.join(lacking)})"
    if os.geteuid() != 0:
        return "a cluster of namespaces needs root (sudo make test-slurm test-kubernetes)"
    allowed = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    if allowed.returncode != 0:
        reason = allowed.stderr.decode(errors="replace").strip()
        return f"no namespaces can be made here ({reason}; a container needs --privileged)"
    return None


def install(packages: list[str]) -> None:
    """Install them with apt-get. Raises CalledProcessError, or FileNotFoundError where there is no apt-get."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    get = ["apt-get", "-qq", "-o", "Acquire::Retries=3"]
    subprocess.run([*get, "update"], env=env, check=True)
    # Debian starts the daemons of what it installs; a policy of 101 keeps it from that.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        subprocess.run([*get, "install", "--yes", "--no-install-recommends", *packages], env=env, check=True)
    finally:
        if ours:
            policy.unlink()


def _there(proof: str) -> bool:
    if proof.startswith("/"):
        return any(Path("/").glob(proof[1:]))
    return shutil.which(proof, path=SEARCHED) is not None
