"""The query to sinfo, answered by a program of that name on PATH."""

import sys

import pytest

from dsrun.errors import ToolError, UsageError
from dsrun.hardware.cluster_gpus import cluster_gpus, cluster_nodes

LINES = """\
n1|skylake,ib|gpu:v100:4(S:0-1)
n1|skylake,ib|gpu:v100:4(S:0-1)
n2|(null)|gpu:a100:8(S:0-3),mps:800
n3|zen3|gpu:a100:4,gpu:1g.10gb:7
login|(null)|(null)
"""


@pytest.fixture
def sinfo(tmp_path, monkeypatch):
    """Put a sinfo on PATH that prints `out` and `err`, ends with `code`, and notes what it was asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    asked = tmp_path / "asked"

    def make(out, *, err="", code=0):
        program = folder / "sinfo"
        program.write_text(
            f"#!{sys.executable}\nimport sys\nopen({str(asked)!r}, 'a').write(repr(sys.argv[1:]) + '\\n')\n"
            f"sys.stdout.write({out!r})\nsys.stderr.write({err!r})\nsys.exit({code})\n"
        )
        program.chmod(0o755)
        return asked

    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return make


def test_sinfo_nodes_with_features_and_gres(sinfo):
    """Every node once, with its features and its gres."""
    asked = sinfo(LINES)
    nodes = cluster_nodes()
    assert nodes is not None
    assert [(node.name, node.features, node.gres) for node in nodes] == [
        ("n1", ("skylake", "ib"), "gpu:v100:4(S:0-1)"),
        ("n2", (), "gpu:a100:8(S:0-3),mps:800"),
        ("n3", ("zen3",), "gpu:a100:4,gpu:1g.10gb:7"),
        ("login", (), "(null)"),
    ]
    assert asked.read_text().count("\n") == 1
    assert "--partition" not in asked.read_text()


def test_sinfo_gpus_summed_by_type(sinfo):
    sinfo(LINES)
    assert [str(gpus) for gpus in cluster_gpus() or ()] == ["gpu:v100:4", "gpu:a100:12", "gpu:1g.10gb:7"]
    assert [gpus.capability for gpus in cluster_gpus() or ()] == [(7, 0), (8, 0), None]


def test_gres_with_zero_gpus_is_no_gpu(sinfo):
    """gpu:0 would be a GPU of unknown type, for which nothing can be built."""
    sinfo("login|(null)|gpu:0\nn1|(null)|gpu:a100:4\nn2|(null)|gpu:h100:0\n")
    assert [str(gpus) for gpus in cluster_gpus() or ()] == ["gpu:a100:4"]


def test_sinfo_partition_passed_verbatim(sinfo):
    asked = sinfo(LINES)
    cluster_nodes("big ones; rm")
    assert "'--partition=big ones; rm'" in asked.read_text()


def test_sinfo_partition_without_nodes_rejected(sinfo):
    sinfo("")
    assert cluster_gpus() == ()
    with pytest.raises(UsageError, match=r"no nodes in a partition 'bigg'.*sinfo -s"):
        cluster_gpus("bigg")


def test_no_cluster_without_sinfo(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cluster_nodes() is None
    assert cluster_gpus() is None


def test_no_cluster_without_slurm_configuration(sinfo):
    """SLURM's programs alone, without a configuration, are no cluster."""
    sinfo(
        "",
        err="sinfo: error: fetch_config: x\nsinfo: fatal: Could not establish a configuration source\n",
        code=1,
    )
    assert cluster_nodes() is None


def test_missing_slurm_conf_error(sinfo, tmp_path, monkeypatch):
    """A configuration that is not there is reported at once, without asking sinfo."""
    asked = sinfo(LINES)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "gone.conf"))
    with pytest.raises(ToolError, match=r"SLURM_CONF names .*gone\.conf"):
        cluster_nodes()
    assert not asked.exists()


def test_slurm_controller_down_error_is_one_line(sinfo):
    sinfo("", err="slurm_load_partitions: x\nUnable to contact slurm controller (connect failure)\n", code=1)
    with pytest.raises(ToolError) as caught:
        cluster_nodes()
    assert "Unable to contact slurm controller (connect failure)" in caught.value.message
    assert "\n" not in str(caught.value)
