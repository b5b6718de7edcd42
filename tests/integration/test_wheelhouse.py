"""Wheels that exist already: taken from a folder, an index or another store, part by part, or made by a script."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from dsrun.system.files import sha256_of
from dsrun.wheel.wheelhouse import write_index
from tests.integration.builder import Builder, small

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def made(tree, tmp_path_factory):
    """A wheel of the tiny operation in a folder of its own, and who built it."""
    builder = Builder(tmp_path_factory.mktemp("made"))
    return builder, builder.wheel(*small(tree, "-o", "dist"))


@pytest.fixture(scope="module")
def index(made):
    """The URL of an index with that wheel, on this machine."""
    _, wheel = made
    counts = write_index(wheel.parent)
    (group,) = set(counts) - {"simple"}
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(wheel.parent))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{group}/"
        server.shutdown()


def taken(builder, tree, place, wheel):
    """Build with --find-links; stderr. The wheel is the other one, and nothing was compiled."""
    code, out, err = builder.run(*small(tree, "--find-links", place))
    assert code == 0, err
    got = Path(out.strip())
    assert sha256_of(got) == sha256_of(wheel)
    assert "cpu_lion: compiling" not in err
    assert json.loads((got.parent / "WHEEL.json").read_text())["sha256"] == sha256_of(wheel)
    return err


def test_wheel_is_taken_from_a_folder(made, tree, builder):
    _, wheel = made
    assert f"note: taken from {wheel.parent}" in taken(builder, tree, wheel.parent, wheel)
    assert list(builder.scratch.iterdir()) == []


def test_wheel_is_taken_from_a_read_only_store(made, tree, builder):
    maker, wheel = made
    store = maker.cache / "wheels"
    before = sorted(store.rglob("*"))
    taken(builder, tree, store, wheel)
    assert sorted(store.rglob("*")) == before


def test_wheel_is_taken_from_an_index(made, index, tree, builder):
    _, wheel = made
    taken(builder, tree, index, wheel)


def test_pip_installs_the_wheel_of_an_index(made, index, tmp_path):
    _, wheel = made
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--target", tmp_path]
    subprocess.run([*pip, "--quiet", "--index-url", index, "deepspeed"], check=True)
    (info,) = tmp_path.glob("deepspeed-*.dist-info")
    assert wheel.name.startswith(info.name.removesuffix(".dist-info"))
    assert (info / "dsrun.json").is_file()


@pytest.mark.exhaustive
def test_damaged_wheel_of_a_folder_is_not_taken(made, tree, builder, tmp_path):
    _, wheel = made
    shutil.copy(wheel, tmp_path)
    with (tmp_path / wheel.name).open("r+b") as file:
        file.seek(60)
        file.write(b"\0\0\0\0")
    code, out, err = builder.run(*small(tree, "--find-links", tmp_path, "--find-links", tmp_path / "missing"))
    assert code == 0, err
    assert f"note: {wheel.name} from {tmp_path} is not used: " in err
    assert "cpu_lion: compiling" in err
    assert sha256_of(Path(out.strip())) == sha256_of(wheel)


def test_operation_is_compiled_once_for_several_wheels(made, tree, builder):
    """The whole wheel is gone, its part is there: as for another wheel with the same operation."""
    maker, wheel = made
    shutil.copytree(maker.cache / "wheels/parts", builder.cache / "wheels/parts")
    code, out, err = builder.run(*small(tree))
    assert code == 0, err
    assert "cpu_lion: compiled before, for another wheel" in err
    assert "cpu_lion: compiling" not in err
    assert sha256_of(Path(out.strip())) == sha256_of(wheel)
    code, _, err = builder.run(*small(tree, "--force"))
    assert (code, "cpu_lion: compiling" in err) == (0, True), err


def test_dry_run_script_builds_the_same_wheel(made, tree, builder):
    _, wheel = made
    code, script, err = builder.run(*small(tree, "--dry-run"))
    assert code == 0, err
    assert builder.stored == []
    file = builder.folder / "build.sh"
    file.write_text(script)
    environ = builder.environ()
    done = subprocess.run(["sh", file], env=environ, cwd=builder.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sha256_of(Path(done.stdout.splitlines()[-1])) == sha256_of(wheel)
    assert "cpu_lion: compiled before" in done.stderr
    assert list(builder.scratch.iterdir()) == []
