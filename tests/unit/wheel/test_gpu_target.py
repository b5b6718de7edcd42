"""What `--arch` means here: this machine, the cluster, a list, or the CPU."""

import pytest

from dsrun.errors import ToolError, UsageError
from dsrun.hardware.gres import parse_gres
from dsrun.machine.gpus import LocalGpu
from dsrun.wheel.platform.arch import env_value
from dsrun.wheel.platform.gpu_target import decide_target

A100 = "NVIDIA A100-SXM4-80GB"


def gpu(name, capability):
    return LocalGpu(index=0, name=name, uuid=f"GPU-{name}", memory_total=None, capability=capability)


def decide(arch="auto", *, cuda="13.0", gpus=(), gres=None, partition=None):
    """`gres` is the cluster's GRES string, None without SLURM, or an error to raise."""

    def ask(asked):
        assert asked == partition
        if isinstance(gres, Exception):
            raise gres
        return None if gres is None else parse_gres(gres)

    return decide_target(arch, torch_cuda=cuda, gpus=gpus, gres=ask, partition=partition)


def test_auto_prefers_local_gpus_to_cluster_gpus():
    target = decide(gpus=[gpu("NVIDIA H100 PCIe", (9, 0)), gpu(A100, (8, 0)), gpu(A100, (8, 0))], gres="gpu:v100:4")
    assert (target.kind, env_value(target.archs)) == ("cuda", "8.0;9.0")
    assert "1 × NVIDIA H100 PCIe, 2 × NVIDIA A100-SXM4-80GB" in target.origin


def test_driver_capability_wins_over_gpu_table():
    assert env_value(decide(gpus=[gpu(A100, (9, 0))]).archs) == "9.0"


@pytest.mark.parametrize("arch", ["auto", "slurm", "SLURM "])
def test_archs_from_cluster_gres(arch):
    target = decide(arch, gres="gpu:v100:2,gpu:a100_1g.5gb:7,mps:400")
    assert (target.kind, env_value(target.archs)) == ("cuda", "7.0;8.0")
    assert target.origin == "the GPUs of the cluster: gpu:v100:2, gpu:a100_1g.5gb:7"


@pytest.mark.parametrize("arch", ["auto", "slurm"])
def test_partition_gres_wins_over_local_gpus(arch):
    target = decide(arch, gpus=[gpu(A100, (8, 0))], gres="gpu:h100:8", partition="big")
    assert env_value(target.archs) == "9.0"
    assert "partition big" in target.origin


@pytest.mark.parametrize("gres", ["gpu:4", "gpu:a100:4,gpu:1g.10gb:7", "gpu:gold:2"])
@pytest.mark.parametrize("arch", ["auto", "slurm"])
def test_gres_type_without_gpu_name_is_refused(arch, gres):
    """A GRES type that does not name its GPU is not guessed at."""
    with pytest.raises(UsageError) as caught:
        decide(arch, gres=gres)
    assert gres.rpartition(",")[2] in caught.value.message
    assert "a100:4" not in caught.value.message
    assert "--arch a100,h100" in (caught.value.fix or "")


@pytest.mark.parametrize("gres", [None, "(null)", ToolError("sinfo failed: no controller")])
def test_auto_without_gpu_depends_on_torch_build(gres):
    """Without any GPU, auto builds for the CPU under a CPU torch and asks for --arch under a CUDA torch."""
    target = decide(cuda=None, gres=gres)
    assert (target.kind, target.archs) == ("cpu", ())
    assert "torch is a CPU build" in target.origin
    with pytest.raises(UsageError) as caught:
        decide(cuda="13.0", gres=gres)
    for choice in ("a100,h100", "8.0;9.0", "--arch slurm", "--arch cpu"):
        assert choice in str(caught.value)
    assert caught.value.exit_code == 2


def test_auto_reports_sinfo_error():
    with pytest.raises(UsageError, match="no controller"):
        decide(gres=ToolError("sinfo failed: no controller"))


def test_arch_slurm_without_slurm_or_gpu():
    with pytest.raises(UsageError, match="no SLURM cluster here"):
        decide("slurm")
    with pytest.raises(UsageError, match="no GPU in the cluster"):
        decide("slurm", gres="(null)")
    assert decide("slurm", cuda=None, gres="(null)").kind == "cpu"
    with pytest.raises(ToolError):
        decide("slurm", gres=ToolError("sinfo failed"))


@pytest.mark.parametrize("arch", ["auto", "slurm", "a100"])
def test_cpu_torch_cannot_build_for_gpus(arch):
    with pytest.raises(UsageError, match=r"torch is a CPU build and cannot build CUDA code.*--arch cpu"):
        decide(arch, cuda=None, gres="gpu:4")
    with pytest.raises(UsageError, match="NVIDIA A100"):
        decide("auto", cuda=None, gpus=[gpu(A100, (8, 0))])


@pytest.mark.parametrize("cuda", [None, "13.0"])
def test_arch_cpu_ignores_gpus(cuda):
    target = decide("CPU", cuda=cuda, gpus=[gpu(A100, (8, 0))], gres="gpu:a100:4")
    assert (target.kind, target.archs) == ("cpu", ())


def test_arch_list_does_not_query_slurm():
    target = decide("h100, 8.0+PTX", gres=ToolError("asked"))
    assert (target.kind, env_value(target.archs), target.origin) == (
        "cuda",
        "8.0+PTX;9.0",
        "--arch h100, 8.0+PTX",
    )


def test_partition_with_arch_list_is_refused():
    with pytest.raises(UsageError, match="--partition big does not go with --arch a100"):
        decide("a100", partition="big")
