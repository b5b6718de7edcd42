"""Several wheels of one package become one; equal contents give equal bytes."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import pytest

from dsrun.errors import ToolError
from dsrun.system.files import sha256_of
from dsrun.wheel.compile import assemble as merging
from dsrun.wheel.compile.assemble import INSTALLED, assemble, platform_tag
from dsrun.wheel.verify.contents import read_wheel
from tests.tiny_wheels import compiled, needs_gcc
from tests.unit.wheel.test_wheel_request import CPU

NAME = "deepspeed-0.19.8+dsrun-cp311-cp311-linux_x86_64.whl"
VERSION = f"0.19.8+{CPU.local_version}"
INFO = f"deepspeed-{VERSION}.dist-info"
TABLE = "version='0.19.8+dsrun'\ninstalled_ops={}\naccelerator_name='cpu'\n"
PART = "deepspeed-0.19.8+dsrun.dist-info"
METADATA = """\
Metadata-Version: 2.4
Name: deepspeed
Version: 0.19.8+dsrun
Requires-Dist: numpy
Requires-Dist: torch>=2.0.0
Requires-Dist: torchvision; extra == "dev"
Requires-Dist: torch>=2.0.0; extra == "all"

Built with torch>=2.0.0
"""


def wheel(folder: Path, ops: dict[str, bool], *, moment=(2026, 11, 21, 8, 0, 0), backwards=False, **more: bytes):
    """A wheel as setuptools leaves it; `more`: files of the package, `__` for a dot in their names."""
    folder.mkdir(parents=True)
    files = {
        "deepspeed/__init__.py": (b"x = 1\n", 0o644),
        INSTALLED: (TABLE.format(ops).encode(), 0o664),
        "deepspeed-0.19.8+dsrun.data/scripts/ds_report": (b"#!python\n", 0o755),
        f"{PART}/METADATA": (METADATA.encode(), 0o644),
        f"{PART}/WHEEL": (b"Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n", 0o644),
        f"{PART}/RECORD": (b"whatever\n", 0o664),
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
    first = wheel(tmp_path / "a", {"cpu_adam": True, "utils": False}, cpu_adam_op__bin=b"adam")
    second = wheel(tmp_path / "b", {"cpu_adam": False, "utils": 1}, utils_op__bin=b"utils")
    (tmp_path / "out").mkdir()
    return assemble([first, second], tmp_path / "out", CPU)


def test_merged_wheel_has_all_libraries_and_one_op_table(merged):
    with zipfile.ZipFile(merged) as archive:
        assert archive.read("deepspeed/ops/cpu_adam_op.bin") == b"adam"
        assert archive.read("deepspeed/ops/utils_op.bin") == b"utils"
        table = TABLE.replace("0.19.8+dsrun", VERSION)
        assert archive.read(INSTALLED).decode() == table.format({"cpu_adam": True, "utils": True})
        assert archive.testzip() is None


def test_record_lists_every_file_with_hash(merged):
    """RECORD lists every file with its hash, itself last."""
    with zipfile.ZipFile(merged) as archive:
        rows = list(csv.reader(io.StringIO(archive.read(f"{INFO}/RECORD").decode())))
        assert [row[0] for row in rows] == archive.namelist()
        assert rows[-1] == [f"{INFO}/RECORD", "", ""]
        # `printf adam | sha256sum | xxd -r -p | basenc --base64url`, without the padding
        assert rows[[row[0] for row in rows].index("deepspeed/ops/cpu_adam_op.bin")][1:] == [
            "sha256=9_N2ofzQ0OEaEO0bZXfJl4TTprvmabHRP65D62RjT24",
            "4",
        ]


def test_merged_wheel_is_reproducible(tmp_path):
    """Times, order and permissions of the parts leave no trace."""
    made = []
    for number, (moment, backwards) in enumerate([((2026, 1, 1, 1, 1, 2), False), ((1999, 5, 5, 5, 5, 6), True)]):
        part = wheel(tmp_path / f"in{number}", {"utils": True}, moment=moment, backwards=backwards, utils_op__bin=b"u")
        (tmp_path / f"out{number}").mkdir()
        made.append(sha256_of(assemble([part], tmp_path / f"out{number}", CPU)))
    assert made[0] == made[1]


def test_merged_wheel_scripts_stay_executable(merged):
    with zipfile.ZipFile(merged) as archive:
        modes = {info.filename: (info.external_attr >> 16) & 0o777 for info in archive.infolist()}
    assert modes[f"deepspeed-{VERSION}.data/scripts/ds_report"] == 0o755
    assert modes[INSTALLED] == 0o644


def test_merge_of_conflicting_files_is_refused(tmp_path):
    first = wheel(tmp_path / "a", {}, shared__h=b"1")
    second = wheel(tmp_path / "b", {}, shared__h=b"2")
    with pytest.raises(ToolError, match=r"differ in deepspeed/ops/shared\.h"):
        assemble([first, second], tmp_path, CPU)


def test_unexpected_op_table_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "TABLE", "ops={}\n")
    with pytest.raises(ToolError, match="installed_ops"):
        assemble([wheel(tmp_path / "a", {})], tmp_path, CPU)


def test_merged_wheel_is_named_after_the_request(merged):
    """The version says which wheel it is, whatever the parts were called; the name and METADATA agree."""
    report = read_wheel(merged)
    assert (report.version, report.python, report.abi) == (VERSION, "cp311", "cp311")
    with zipfile.ZipFile(merged) as archive:
        assert not [name for name in archive.namelist() if "+dsrun" in name]
        headers = archive.read(f"{INFO}/METADATA").decode().partition("\n\n")[0]
    assert f"\nVersion: {VERSION}\n" in headers


def test_merged_wheel_requires_the_torch_it_was_built_with(merged):
    with zipfile.ZipFile(merged) as archive:
        lines = archive.read(f"{INFO}/METADATA").decode().splitlines()
    assert [line for line in lines if line.startswith("Requires-Dist: ")] == [
        "Requires-Dist: numpy",
        "Requires-Dist: torch==2.13.*",
        'Requires-Dist: torchvision; extra == "dev"',
        'Requires-Dist: torch==2.13.*; extra == "all"',
    ]
    assert lines[-1] == "Built with torch>=2.0.0"


def test_provenance_is_inside_the_wheel(merged):
    built_from = read_wheel(merged).built_from
    assert built_from == {"key": CPU.key, **CPU.as_dict()}


@needs_gcc
def test_platform_tag_is_the_oldest_manylinux_by_symbol_versions(tmp_path):
    """exp got a new version in glibc 2.29, which manylinux_2_28 does not have; without it 2.17 is enough."""
    old = compiled(tmp_path / "old", "int twice(int x) { return 2 * x; }").read_bytes()
    new = compiled(tmp_path / "new", "#include <math.h>\ndouble f(double x) { return exp(x); }", "-lm").read_bytes()
    assert platform_tag({"a.so": old}, "linux_x86_64") == "manylinux_2_5_x86_64"
    assert platform_tag({"a.so": old, "b.so": new}, "linux_x86_64") == "manylinux_2_31_x86_64"


@needs_gcc
def test_platform_tag_that_this_machine_would_refuse_is_not_given(tmp_path, monkeypatch):
    library = compiled(tmp_path, "int twice(int x) { return 2 * x; }").read_bytes()
    monkeypatch.setattr(merging, "platform_tags", lambda: iter(["linux_x86_64"]))
    assert platform_tag({"a.so": library}, "linux_x86_64") == "linux_x86_64"
    assert platform_tag({}, "macosx_14_0_arm64") == "macosx_14_0_arm64"


def test_wheel_without_a_plain_tag_is_refused(tmp_path):
    part = wheel(tmp_path / "a", {})
    with zipfile.ZipFile(part) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    contents[f"{PART}/WHEEL"] = b"Wheel-Version: 1.0\n"
    with zipfile.ZipFile(part, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    with pytest.raises(ToolError, match="has no tag"):
        assemble([part], tmp_path, CPU)
