"""`dsrun gpus` as a user calls it."""

import json
import re
import shlex

import pytest
from click.testing import CliRunner

from dsrun.cli import gpus
from dsrun.cli.options import declared_in
from dsrun.hardware.gpu_facts import gpu_table
from dsrun.machine.gpus import LocalGpu


def gpus_json(dsrun, *args):
    done = dsrun("gpus", *args, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    output = json.loads(done.stdout)
    assert output.pop("version") == 1
    return output


def test_gpu_names_are_answered_in_given_order(dsrun):
    names = [
        "NVIDIA H100 80GB HBM3",
        "a100",
        "Foo 9000",
        "rtx 4000",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "a100",
    ]
    rows = gpus_json(dsrun, *names)["gpus"]
    assert [row["name"] for row in rows] == names
    assert [row["compute_capability"] for row in rows] == ["9.0", "8.0", None, None, "8.0", "8.0"]


def test_gpus_json_fields(dsrun):
    (row,) = gpus_json(dsrun, "Tesla V100-SXM2-32GB")["gpus"]
    assert row == {
        "name": "Tesla V100-SXM2-32GB", "compute_capability": "7.0", "product": "Tesla V100 SXM2 32GB",
        "segment": "datacenter", "architecture": "Volta", "chip": "GV100", "memory_gib": 32,
        "usable_gib": None, "unified": None,
        "memory_bandwidth_gbs": 900, "bf16_tflops": None, "first_cuda": "9.0", "last_cuda": "12.9",
        "pypi_torch_first": None, "pypi_torch_last": "2.10.0", "release_year": 2017, "confidence": "A", "note": None,
    }  # fmt: skip
    (row,) = gpus_json(dsrun, "A100 SXM4 80GB")["gpus"]
    assert (row["memory_gib"], row["bf16_tflops"], row["memory_bandwidth_gbs"], row["last_cuda"]) == (
        80, 312, 2039, None,
    )  # fmt: skip


def test_gpus_table_has_the_memory_that_plans_have(dsrun):
    assert re.search(r"^B300 .* 268 ", dsrun("gpus", "B300").stdout, re.MULTILINE)


def test_unknown_gpu_name_lists_candidates(dsrun):
    ambiguous, mistyped, foreign = gpus_json(dsrun, "rtx 4000", "b20", "MI300X")["gpus"]
    assert ambiguous["may_be"] == ["Quadro RTX 4000", "RTX 4000 Ada"]
    assert mistyped["may_be"][0] == "B200"
    assert foreign["may_be"] == []


def test_gres_json(dsrun):
    text = "gpu:a100:4(S:0-1),gpu:1g.10gb:7,gpu:a100_1g.5gb:2,mps:400,gpu:3"
    assert gpus_json(dsrun, "--gres", text) == {
        "gres": [
            {"type": "a100", "count": 4, "compute_capability": "8.0"},
            {"type": "1g.10gb", "count": 7, "compute_capability": None},
            {"type": "a100_1g.5gb", "count": 2, "compute_capability": "8.0"},
            {"type": None, "count": 3, "compute_capability": None},
        ]
    }
    assert gpus_json(dsrun, "--gres", "(null)") == {"gres": []}


def test_gpu_names_and_gres_together(dsrun):
    output = gpus_json(dsrun, "h100", "--gres=gpu:2")
    assert [row["name"] for row in output["gpus"]] == ["h100"]
    assert output["gres"] == [{"type": None, "count": 2, "compute_capability": None}]


@pytest.mark.parametrize("args", [(), ("--all",)])
def test_gpus_json_without_names_lists_whole_table(dsrun, args):
    """Without names, and without a GPU here, the whole table is listed."""
    rows = gpus_json(dsrun, *args)["gpus"]
    assert [row["name"] for row in rows] == [row.name for row in gpu_table()]
    assert None not in {row["compute_capability"] for row in rows}


def test_gpus_without_names_tells_how_to_ask(dsrun):
    """Each of its examples is answered, as is the list that it names."""
    done = dsrun("gpus")
    assert (done.returncode, done.stderr) == (0, "")
    examples = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert len(examples) == 3
    assert f"{len(gpu_table())} models" in done.stdout
    for example in examples:
        answer = dsrun(*shlex.split(example)[1:])
        assert (answer.returncode, answer.stderr) == (0, "")
        assert "unknown" not in answer.stdout
    assert len(dsrun("gpus", "--all").stdout.splitlines()) == len(gpu_table()) + 1
    assert dsrun("gpus", "--all", "h100").returncode == 2


def test_gpus_of_this_machine_are_the_product(monkeypatch):
    """How to ask stands beside them, on stderr."""
    here = [LocalGpu(index=0, name="NVIDIA A100-SXM4-80GB", uuid="GPU-0", memory_total=80 << 30, capability=(8, 0))]
    monkeypatch.setattr(gpus, "visible_gpus", lambda: here)
    command = declared_in("gpus.toml")
    done = CliRunner().invoke(command, [])
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == ["name", "NVIDIA A100-SXM4-80GB"]
    assert done.stderr.count("dsrun gpus ") == 4
    found = json.loads(CliRunner().invoke(command, ["--format", "json"]).stdout)
    assert [row["compute_capability"] for row in found["gpus"]] == ["8.0"]


def test_gpus_table_and_notes_on_unknown_names(dsrun):
    """The table has a line per name; notes say which are unknown."""
    done = dsrun("gpus", "h100 pcie", "rtx 4000", "b20", "MI300X")
    assert done.returncode == 0
    head, *lines = done.stdout.splitlines()
    assert head.split("  ")[0] == "name"
    assert [line.split("  ")[0] for line in lines] == ["h100 pcie", "rtx 4000", "b20", "MI300X"]
    assert lines[0].split() == ["h100", "pcie", "9.0", "Hopper", "80", "756.5", "2000", "11.8", "-"]
    assert [line.split()[-7] for line in lines[1:]] == ["unknown"] * 3
    assert done.stderr.splitlines() == [
        "note: 'rtx 4000' may be Quadro RTX 4000 or RTX 4000 Ada, which differ; write the full name",
        "note: no GPU called 'b20' is known; did you mean B200 or GB200?",
        "note: MI300X is an AMD card; dsrun builds for CUDA",
    ]


def test_gres_table(dsrun):
    done = dsrun("gpus", "--gres", "gpu:a100:4,gpu:2")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["type", "count", "capability"], ["a100", "4", "8.0"], ["-", "2", "unknown"],
    ]  # fmt: skip
    assert done.stderr == ""


def test_gres_without_gpus_gives_note(dsrun):
    done = dsrun("gpus", "--gres", "mps:100")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "note: 'mps:100' contains no GPUs\n"


@pytest.mark.parametrize("form", ["table", "json"])
def test_malformed_gres_is_usage_error(dsrun, form):
    done = dsrun("gpus", "--gres", "gpu:a100:h100", "--format", form)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: 'gpu:a100:h100' is not a GRES for GPUs")
