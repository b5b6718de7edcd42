"""Runs that push their model to a Hub on this machine."""

from __future__ import annotations

import pytest

from tests.hub_server import hub_server
from tests.integration.conftest import SHORT, dsrun

pytestmark = pytest.mark.train

# Not that of test_secrets.py, which looks at all processes of the machine.
TOKEN = "hf_pushedPUSHED0123456789"


def test_run_pushes_its_model_and_survives_a_failed_push(tiny, pairs, tmp_path):
    """Two ranks: the finished model is pushed with its card; a push that fails is said, and the run stays finished."""
    with hub_server() as hub:
        hub.writers.add(TOKEN)
        environ = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
        flags = [
            "--model", tiny["t5"], "--train-file", pairs["train"], *SHORT, "--nproc", "2", "--max-steps", "2",
            "--save-steps", "1", "--push-to-hub", "--hub-model-id", "org/mine", "--hub-token", TOKEN,
        ]  # fmt: skip
        run = dsrun(*flags, output=tmp_path / "run", env=environ).ok()
        assert "pushed  http://127.0.0.1" in run.err
        assert run.out == f"{tmp_path / 'run' / 'model'}\n"
        files = {path.name: path.read_bytes() for path in (run.folder / "model").iterdir()}
        assert hub.repositories == {"org/mine": files}
        assert hub.commits == ["main"]
        assert b'from_pretrained("org/mine")' in files["README.md"]

        hub.failing = "/commit/main"
        failed = dsrun(*flags, output=tmp_path / "run", env=environ)
        assert failed.code == 4
        assert "error: the run is finished, but its model was not pushed: the Hub answered 503" in failed.err
        assert f"push it again: hf upload org/mine {run.folder / 'model'}" in failed.err
        assert "again from" not in failed.err
        assert (run.folder / "FINISHED").exists()

        hub.writers.clear()
        refused = dsrun(*flags, output=tmp_path / "other", env=environ)
        assert (refused.code, refused.out) == (4, "")
        assert "\nerror: --push_to_hub: the Hub answered 401" in refused.err
        assert not (tmp_path / "other").exists()
    held = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert held == []
    assert TOKEN not in run.err + failed.err + refused.err
