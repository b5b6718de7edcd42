"""Host aliases of the ssh configuration."""

from __future__ import annotations

import pytest

from dsrun.system.net import behind_alias


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """ssh -G as OpenSSH answers it, with one alias."""
    program = tmp_path / "ssh"
    program.write_text(
        '#!/bin/sh\n[ "$1" = -G ] && echo "host $3" && echo user me\n'
        'if [ "$3" = gpu-a.invalid ]; then echo hostname 10.1.2.3; else echo "hostname $3"; fi\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("dsrun.system.net._SSH_S", 600)


@pytest.mark.usefixtures("ssh")
@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("gpu-a.invalid", "10.1.2.3"),
        ("gpu-b.invalid", "gpu-b.invalid"),
        ("localhost", "localhost"),
        ("10.9.8.7", "10.9.8.7"),
    ],
)
def test_ssh_alias_resolved_to_hostname(name, address):
    """An alias of ssh is looked up where no name service knows it."""
    assert behind_alias(name) == address


def test_hostname_unchanged_without_ssh(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert behind_alias("gpu-a.invalid") == "gpu-a.invalid"
