"""Several wheels of one package become one; equal contents give equal bytes."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import pytest

from dsrun.errors import ToolError
from dsrun.wheel.cache import sha256_of
from dsrun.wheel.compile.assemble import INSTALLED, assemble

NAME = "deepspeed-0.19.8+cpu-cp311-cp311-linux_x86_64.whl"
INFO = "deepspeed-0.19.8+cpu.dist-info"
TABLE = "version='0.19.8+cpu'\ninstalled_ops={}\naccelerator_name='cpu'\n"


def wheel(folder: Path, ops: dict[str, bool], *, moment=(2026, 11, 21, 8, 0, 0), backwards=False, **more: bytes):
    """A wheel as setuptools leaves it; `more`: files of the package, `__` for a dot in their names."""
    folder.mkdir(parents=True)
    files = {
        "deepspeed/__init__.py": (b"x = 1\n", 0o644),
        INSTALLED: (TABLE.format(ops).encode(), 0o664),
        "deepspeed-0.19.8+cpu.data/scripts/ds_report": (b"#!python\n", 0o755),
        f"{INFO}/METADATA": (b"Name: deepspeed\n", 0o644),
        f"{INFO}/WHEEL": (b"Wheel-Version: 1.0\n", 0o644),
        f"{INFO}/RECORD": (b"whatever\n", 0o664),
        **{f"deepspeed/ops/{name.replace('__', '.')}": (data, 0o755) for name, data in more.items()},
    }
    order = sorted(files, reverse=backwards)
    with zipfile.ZipFile(folder / NAME, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("deepspeed/")
        for name in order:
            info = zipfile.ZipInfo(name, moment)
            info.external_attr = (0o100000 | files[name][1]) << 16
            archive.writestr(info, files[name][0])
    return folder / NAME


@pytest.fixture
def merged(tmp_path):
    first = wheel(tmp_path / "a", {"cpu_adam": True, "utils": False}, cpu_adam_op__so=b"adam")
    second = wheel(tmp_path / "b", {"cpu_adam": False, "utils": 1}, utils_op__so=b"utils")
    (tmp_path / "out").mkdir()
    return assemble([first, second], tmp_path / "out")


def test_merged_wheel_has_all_libraries_and_one_op_table(merged):
    with zipfile.ZipFile(merged) as archive:
        assert archive.read("deepspeed/ops/cpu_adam_op.so") == b"adam"
        assert archive.read("deepspeed/ops/utils_op.so") == b"utils"
        assert archive.read(INSTALLED).decode() == TABLE.format({"cpu_adam": True, "utils": True})
        assert archive.testzip() is None


def test_record_lists_every_file_with_hash(merged):
    """RECORD lists every file with its hash, itself last."""
    with zipfile.ZipFile(merged) as archive:
        rows = list(csv.reader(io.StringIO(archive.read(f"{INFO}/RECORD").decode())))
        assert [row[0] for row in rows] == archive.namelist()
        assert rows[-1] == [f"{INFO}/RECORD", "", ""]
        # `printf adam | sha256sum | xxd -r -p | basenc --base64url`, without the padding
        assert rows[[row[0] for row in rows].index("deepspeed/ops/cpu_adam_op.so")][1:] == [
            "sha256=9_N2ofzQ0OEaEO0bZXfJl4TTprvmabHRP65D62RjT24",
            "4",
        ]


def test_merged_wheel_is_reproducible(tmp_path):
    """Times, order and permissions of the parts leave no trace."""
    made = []
    for number, (moment, backwards) in enumerate([((2026, 1, 1, 1, 1, 2), False), ((1999, 5, 5, 5, 5, 6), True)]):
        part = wheel(tmp_path / f"in{number}", {"utils": True}, moment=moment, backwards=backwards, utils_op__so=b"u")
        (tmp_path / f"out{number}").mkdir()
        made.append(sha256_of(assemble([part], tmp_path / f"out{number}")))
    assert made[0] == made[1]


def test_merged_wheel_scripts_stay_executable(merged):
    with zipfile.ZipFile(merged) as archive:
        modes = {info.filename: (info.external_attr >> 16) & 0o777 for info in archive.infolist()}
    assert modes["deepspeed-0.19.8+cpu.data/scripts/ds_report"] == 0o755
    assert modes[INSTALLED] == 0o644


def test_merge_of_conflicting_files_is_refused(tmp_path):
    first = wheel(tmp_path / "a", {}, shared__h=b"1")
    second = wheel(tmp_path / "b", {}, shared__h=b"2")
    with pytest.raises(ToolError, match=r"differ in deepspeed/ops/shared\.h"):
        assemble([first, second], tmp_path)


def test_merge_of_differently_named_wheels_is_refused(tmp_path):
    first = wheel(tmp_path / "a", {})
    second = first.rename(first.with_name(NAME.replace("cpu", "cu130", 1)))
    with pytest.raises(ToolError, match="different wheels"):
        assemble([wheel(tmp_path / "b", {}), second], tmp_path)


def test_unexpected_op_table_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "TABLE", "ops={}\n")
    with pytest.raises(ToolError, match="installed_ops"):
        assemble([wheel(tmp_path / "a", {})], tmp_path)
