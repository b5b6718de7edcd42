"""A file that may not be read, wherever a command comes across it, is one line."""

from __future__ import annotations

import sys

import pytest

from dsrun.cli import main as entry


def test_file_without_permission_is_one_line(monkeypatch, capsys):
    """Root may read everything, so the system's answer is played."""

    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied", "runs/secret/events.jsonl")

    monkeypatch.setattr(sys, "argv", ["dsrun", "monitor", "runs/secret"])
    monkeypatch.setattr(entry.cli, "main", refuse)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: runs/secret/events.jsonl: permission denied (ask its owner for it)\n"
