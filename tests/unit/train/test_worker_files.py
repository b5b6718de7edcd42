"""Where a worker's libraries keep their temporary files."""

import multiprocessing.process
from multiprocessing import util
from pathlib import Path

import pytest

from dsrun.train.worker import keep_temporary_files_with_run


def test_multiprocessing_files_are_kept_in_supervisors_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed rank cannot delete its pymp-* folder; the supervisor deletes its own."""
    monkeypatch.setitem(multiprocessing.process.current_process()._config, "tempdir", None)
    keep_temporary_files_with_run({"DSRUN_FAILURES": str(tmp_path / "failures")})
    assert Path(util.get_temp_dir()).parent == tmp_path
