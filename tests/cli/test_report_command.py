"""`dsrun report` as a user calls it: what it writes, what it does not replace, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsrun.report.page import MARKER
from tests.cli.conftest import Dsrun
from tests.run_folders import RUN, event, finished_run, steps, write_run


@pytest.fixture
def run(here: Path) -> Path:
    """A finished run, `run` in the folder of the command."""
    return finished_run(here / "run")


def test_page_is_written_into_the_run_folder_again_and_again(dsrun: Dsrun, run: Path) -> None:
    """A page that dsrun wrote there is made anew."""
    for _ in range(2):
        done = dsrun("report", "run")
        assert (done.returncode, done.stdout, done.stderr) == (0, "run/report.html\n", "")
    assert MARKER in (run / "report.html").read_text()


def test_foreign_file_is_replaced_with_force_only(dsrun: Dsrun, run: Path) -> None:
    page = run / "report.html"
    page.write_text("mine")
    done = dsrun("report", "run")
    assert done.returncode == 2
    assert done.stderr == "error: run/report.html exists (add --force to replace it, or name another file with -o)\n"
    assert page.read_text() == "mine"
    assert dsrun("report", "run", "--force").returncode == 0
    assert MARKER in page.read_text()


def test_named_file_is_replaced_with_force_only(dsrun: Dsrun, run: Path, here: Path) -> None:
    """Also one that dsrun wrote."""
    assert dsrun("report", "run", "-o", "page.html").stdout == "page.html\n"
    assert dsrun("report", "run", "-o", "page.html").returncode == 2
    assert dsrun("report", "run", "-o", "page.html", "--force").returncode == 0
    assert not (run / "report.html").exists()
    assert "cannot be written" in dsrun("report", "run", "-o", "none/page.html").stderr


def test_several_runs_are_one_page_here(dsrun: Dsrun, run: Path, here: Path) -> None:
    """A run that is named twice counts once."""
    finished_run(here / "other", run={**RUN, "host": "node2"})
    done = dsrun("report", "run", "other", "run/")
    assert (done.returncode, done.stdout) == (0, "report.html\n")
    text = (here / "report.html").read_text()
    assert "2 runs" in text
    assert "<td>node2</td>" in text
    assert dsrun("report", "run", "other").returncode == 2


def test_json_goes_to_stdout_and_no_page_is_written(dsrun: Dsrun, run: Path, here: Path) -> None:
    done = dsrun("report", "run", "--format", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["version"]) == (0, 1)
    assert found["runs"][0]["status"]["state"] == "finished"
    assert found["panels"][0]["curves"][0]["points"][0] == [1, 5.0]
    assert not (run / "report.html").exists()
    assert dsrun("report", "run", "--format", "json", "-o", "x.json").stdout == "x.json\n"
    assert json.loads((here / "x.json").read_text())["panels"] == found["panels"]


def test_json_has_no_access_token(dsrun: Dsrun, here: Path) -> None:
    secret = "hf_" + "a1B2c3D4e5F6g7H8i9J0"
    write_run(here / "run", events=[event("failure", message=secret)], metrics=steps(2))
    done = dsrun("report", "run", "--format", "json")
    assert secret not in done.stdout
    assert json.loads(done.stdout)["runs"][0]["events"][0]["message"] == "***"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "nothing does not exist (give the --output of a dsrun train or launch)"),
        ("file", "file is not a folder (give the --output of a dsrun train or launch)"),
        ("empty", "empty contains no run (give the --output of a dsrun train or launch)"),
    ],
)
def test_what_is_no_run_is_an_error(dsrun: Dsrun, here: Path, name: str, message: str) -> None:
    (here / "empty").mkdir()
    (here / "file").touch()
    done = dsrun("report", name)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")
    assert list((here / "empty").iterdir()) == []


def test_pictures_beside_the_page(dsrun: Dsrun, here: Path) -> None:
    lines = [{"step": step, "loss": 1 / step, "lr": 1e-4} for step in (1, 2, 3)]
    write_run(here / "run", events=[event("start")], metrics=lines)
    done = dsrun("report", "run", "--png", "plots")
    assert done.returncode == 0
    written = done.stdout.split()
    assert written == ["run/report.html", "plots/loss.png", "plots/lr.png"]
    assert {here / name for name in written[1:]} == set((here / "plots").iterdir())
    again = dsrun("report", "run", "--png", "plots")
    assert again.returncode == 2
    assert again.stderr.startswith("error: plots/loss.png exists (add --force")
    assert dsrun("report", "run", "--png", "plots", "--force").returncode == 0


def test_run_of_one_step_has_no_pictures(dsrun: Dsrun, here: Path) -> None:
    """One point is no curve: its figures are on the page."""
    write_run(here / "run", events=[event("start")], metrics=[*steps(1), {"step": 1, "eval_bleu": 3.0}])
    done = dsrun("report", "run", "--png", "plots")
    assert (done.returncode, done.stdout) == (0, "run/report.html\n")
    assert done.stderr.startswith("note: ")
    assert list((here / "plots").iterdir()) == []
    assert '<svg viewBox="0 0 1000 300"' not in (here / "run" / "report.html").read_text()


def test_pictures_without_matplotlib(dsrun: Dsrun, run: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    """The page needs no matplotlib; pictures name what to install."""
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('not installed')\n")
    environ["PYTHONPATH"] = f"{tmp_path}:{environ.get('PYTHONPATH', '')}"
    assert dsrun("report", "run").returncode == 0
    done = dsrun("report", "run", "--png", "plots")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "error: --png needs matplotlib (pip install 'dsrun[observe]')\n"


def test_page_imports_no_plotting_library(dsrun: Dsrun, run: Path) -> None:
    """A login node has the light core only."""
    done = dsrun("report", "run", python=("-X", "importtime"))
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "jinja2" in imported
    assert not {"matplotlib", "numpy", "torch"} & imported
