"""The look-up by name: what drivers print, what people type, and what must stay unknown."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.datafiles import data_folder, read_toml
from dsrun.hardware.gpu_facts import (
    gpu_table,
    lookup,
    meanings,
    memory_sizes,
    near_names,
    peak_bf16_tflops,
    unknown_gpu,
)
from dsrun.hardware.site import instance, instances
from dsrun.zero.generate.presets import memory_of
from dsrun.zero.memory.plan_request import cluster

TABLE = gpu_table()
rows = st.sampled_from(TABLE)


def test_gpu_table_is_complete_and_names_are_unique():
    assert len(TABLE) == 337
    assert len({row.name for row in TABLE}) == 337
    assert {row.confidence for row in TABLE} == {"A", "B", "C"}
    for row in TABLE:
        assert (3, 0) <= row.capability <= (12, 1)
        assert row.memory_gib
        assert row.memory_gib > 0


def test_cuda_versions_agree_with_those_of_nvcc():
    """first_cuda and last_cuda of a GPU, and the capabilities that each nvcc of cuda.toml compiles for."""

    def version(text):
        return tuple(int(part) for part in text.split("."))

    for row in TABLE:
        for nvcc in read_toml(data_folder("build") / "cuda.toml")["nvcc"]:
            first, last = version(row.first_cuda), version(row.last_cuda or "99.0")
            capability = "{}.{}".format(*row.capability)
            compiles = capability in nvcc["capabilities"]
            assert compiles == (first <= version(nvcc["version"]) <= last), (row.name, nvcc["version"])


def test_memory_is_one_figure_in_every_command():
    for row in TABLE:
        planned = cluster(row.name)
        assert row.unified or planned.memory == planned.model.memory == memory_of(row) == row.memory, row.name
        assert memory_sizes(row) == (row.memory,)
    b300 = lookup("B300")
    assert (b300.memory, b300.memory_gib) == (268, 288)
    assert lookup("b300-288") == lookup("b300-268") == b300
    assert cluster("B300", memory=100).model.memory == 100


def test_no_peak_tflops_without_bf16_tensor_cores():
    stated = [row for row in TABLE if row.bf16_tflops]
    assert len(stated) > 30
    assert [row.name for row in stated if not row.has_bf16] == []


def test_peak_tflops_and_bandwidth_units():
    # One figure with sparsity, or GB/s mistaken for TB/s, falls out of these ranges.
    for row in TABLE:
        if row.bf16_tflops:
            assert 10 < row.bf16_tflops <= 2500, row.name
        if row.memory_bandwidth_gbs:
            assert 190 <= row.memory_bandwidth_gbs <= 22_000, row.name
    assert peak_bf16_tflops("NVIDIA A100-SXM4-80GB") == 312
    assert peak_bf16_tflops("NVIDIA GeForce RTX 4090") == pytest.approx(165.2)


def test_gpu_lookup_by_alias():
    for row in TABLE:
        for alias in row.aliases:
            assert lookup(alias) is row
            assert lookup(f"NVIDIA {alias}") is row


@given(rows)
def test_gpu_lookup_by_table_name(row):
    assert lookup(row.name) is row


@given(
    rows,
    st.sampled_from(["", "NVIDIA ", "NVIDIA Corporation "]),
    st.sampled_from([" ", "-", "_", "  "]),
    st.sampled_from([str.lower, str.upper, str.title, str]),
    st.sampled_from(["", " GPU", " "]),
)
def test_gpu_lookup_ignores_case_spacing_and_vendor(row, vendor, gap, case, tail):
    name = case(vendor + re.sub(r" ", gap, row.name) + tail)
    assert lookup(name) == row


@given(rows)
def test_gpu_lookup_without_brand_keeps_capability(row):
    """A name without its brand never finds a GPU of another compute capability."""
    found = lookup(re.sub(r"^(Tesla|GeForce|Quadro) ", "", row.name))
    assert found is None or found.capability == row.capability


@given(st.text(max_size=40))
def test_gpu_lookup_of_any_text(text):
    found = lookup(text)
    assert found is None or found.capability >= (3, 5)


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("A100-SXM-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100-SXM-64GB", "A100 SXM4 64GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("NVIDIA H100 NVL", "H100 NVL 94GB"),
        ("NVIDIA H200", "H200 SXM 141GB"),
        ("NVIDIA H200 NVL", "H200 NVL 141GB"),
        ("NVIDIA H20", "H20 SXM5 96GB"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),  # 480 GB is the host's memory
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200 NVL72", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB10", "GB10 (DGX Spark)"),
        ("Tesla V100-SXM2-16GB", "Tesla V100 SXM2 16GB"),
        ("Tesla V100S-PCIE-32GB", "Tesla V100S PCIe 32GB"),
        ("Tesla P100-PCIE-12GB", "Tesla P100 PCIe 12GB"),
        ("Tesla T4", "Tesla T4"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "RTX 4000 SFF Ada"),
        ("NVIDIA RTX 5000 Ada Generation Laptop GPU", "RTX 5000 Ada Laptop"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("Quadro RTX 5000 with Max-Q Design", "Quadro RTX 5000 Laptop"),
        ("Quadro T2000", "T2000 Laptop"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 4090 D", "GeForce RTX 4090 D"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "GeForce RTX 4090 Laptop"),
        ("NVIDIA GeForce RTX 2080 Super with Max-Q Design", "GeForce RTX 2080 SUPER Laptop"),
        ("NVIDIA GeForce RTX 2050", "GeForce RTX 2050 Laptop"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server Edition"),
        ("TITAN X (Pascal)", "TITAN X (Pascal)"),
        ("GeForce GTX TITAN X", "GeForce GTX TITAN X"),
        ("rtx4090", "GeForce RTX 4090"),
        ("4090", "GeForce RTX 4090"),
        ("a6000", "RTX A6000"),
        ("h100-sxm", "H100 SXM5 80GB"),
        ("H100SXM", "H100 SXM5 80GB"),
        ("1080ti", "GeForce GTX 1080 Ti"),
        ("Tesla K40m", "Tesla K40"),
        ("Tesla T4G", "T4G"),
        ("a100-sxm4-80", "A100 SXM4 80GB"),
        ("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5d1ca9e5-5b2a)", "A100 SXM4 80GB"),
        ("GA100 [A100 SXM4 80GB] (rev a1)", "A100 SXM4 80GB"),
        ("GA104M [GeForce RTX 3070 Mobile / Max-Q] (rev a1)", "GeForce RTX 3070 Laptop"),
        ("AD107M [GeForce RTX 4060 Max-Q / Mobile] (rev a1)", "GeForce RTX 4060 Laptop"),
        ("GA107M [GeForce RTX 3050 Ti Mobile]", "GeForce RTX 3050 Ti Laptop"),
        ("TU106M [GeForce RTX 2070 Mobile / Max-Q Refresh]", "GeForce RTX 2070 Laptop"),
        ("TU102 [GeForce RTX 2080 Ti Rev. A] (rev a1)", "GeForce RTX 2080 Ti"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ),
        ("NVIDIA-A100-SXM4-40GB-SHARED", "A100 SXM4 40GB"),  # a label of Kubernetes' GPU feature discovery
        ("Tesla V100-DGXS-32GB", "Tesla V100 DGXS 32GB"),
        ("Tesla V100-FHHL-16GB", "Tesla V100 FHHL 16GB"),
        ("Tesla V100-SXM3-32GB-H", "Tesla V100 SXM3 32GB"),
        ("NVIDIA GH200 120GB", "GH200 96GB"),
        ("NVIDIA TITAN Xp COLLECTORS EDITION", "TITAN Xp"),
        ("NVIDIA RTX 2000E Ada Generation", "RTX 2000E Ada"),
        ("Quadro T1000 with Max-Q Design", "T1000 Laptop"),
        ("NVIDIA CMP 40HX", "CMP 40HX"),
        ("NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super", "Jetson Orin Nano 8GB"),
    ],
)
def test_gpu_lookup_of_driver_names(printed, name):
    found = lookup(printed)
    assert found
    assert found.name == name


@pytest.mark.parametrize(
    ("name", "capability", "memory", "bf16"),
    [
        ("a100", (8, 0), None, 312),
        ("a100-80gb", (8, 0), 80, 312),
        ("h100", (9, 0), None, None),  # SXM, PCIe and NVL have different peaks
        ("v100", (7, 0), None, None),
        ("NVIDIA GeForce RTX 3080", (8, 6), None, None),  # 10 GB or 12 GB
        ("rtx pro 6000", (12, 0), 96, None),
        ("NVIDIA RTX A2000 Laptop GPU", (8, 6), None, None),
        ("a100-80", (8, 0), 80, 312),
        ("v100_32", (7, 0), 32, None),
        ("Orin (nvgpu)", (8, 7), None, None),
        ("NVIDIA Jetson Orin Nano Developer Kit", (8, 7), None, None),
        ("NVIDIA Thor", (11, 0), None, None),
    ],
)
def test_gpu_lookup_of_several_rows_gives_common_values(name, capability, memory, bf16):
    found = lookup(name)
    assert found
    assert (found.capability, found.memory_gib, found.bf16_tflops) == (capability, memory, bf16)


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", (8, 0)),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb+me", (8, 0)),
        ("NVIDIA A30 MIG 1g.6gb", (8, 0)),
        ("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb", (9, 0)),
        ("NVIDIA B200 MIG 1g.23gb", (10, 0)),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb+gfx", (12, 0)),
        ("a100_3g.20gb", (8, 0)),
        ("nvidia_h100_80gb_hbm3_1g.10gb", (9, 0)),
        ("a100-1g-5gb", (8, 0)),
        ("GRID A100-40C", (8, 0)),
        ("GRID A100DX-80C", (8, 0)),
        ("GRID A100-4-20C", (8, 0)),
        ("NVIDIA A100-1-5CME", (8, 0)),
        ("GRID V100DX-32Q", (7, 0)),
        ("GRID P100C-12Q", (6, 0)),
        ("GRID RTX8000P-48Q", (7, 5)),
        ("GRID RTX6000P-24Q", (7, 5)),
        ("NVIDIA A40-48Q", (8, 6)),
        ("NVIDIA L40S-12C", (8, 9)),
        ("NVIDIA RTX6000-Ada-48Q", (8, 9)),
        ("NVIDIA H100XM-80C", (9, 0)),
        ("NVIDIA H100L-94C", (9, 0)),
        ("NVIDIA H100XL-96C", (9, 0)),
        ("NVIDIA B200X-180C", (10, 0)),
        ("NVIDIA RTX Pro 6000 Blackwell DC-4-24Q", (12, 0)),
    ],
)
def test_mig_and_vgpu_have_capability_but_no_peak(name, capability):
    found = lookup(name)
    assert found
    assert found.capability == capability
    assert (found.bf16_tflops, found.memory_bandwidth_gbs) == (None, None)


@pytest.mark.parametrize(
    "name",
    [
        "titan x",  # 5.2 or 6.1
        "titan",
        "quadro 4000",  # one of 2010, not the Quadro RTX 4000
        "MIG 1g.10gb",  # of A100, H100 and others
        "1g.5gb",
        "v100-48",
        "rtx 4000",  # Quadro (7.5) or Ada (8.9)
        "rtx 4000 laptop",
        "rtx 3000",  # Quadro or Ada, for laptops both
        "4500",  # RTX A4500 (8.6), RTX 4500 Ada (8.9) or RTX PRO 4500 (12.0)
        "RTX 6000",
        "GRID RTX6000-24Q",
        "GeForce RTX 6000",
        "GeForce T4",
        "Quadro RTX 4090",
        "Tesla RTX 3090",
        "Quadro P5000 with Max-Q Design",
        "H100 SXM4",
        "A100 48GB",
        "NVIDIA Graphics Device",
        "MI300X",
        "A100 " + "9" * 5000 + "GB",
        "9" * 5000,
        "gpu",
        "",
    ],
)
def test_gpu_lookup_unknown_or_ambiguous(name):
    assert lookup(name) is None
    assert peak_bf16_tflops(name) is None


def test_gpu_meanings_of_ambiguous_name():
    assert [row.name for row in meanings("rtx 4000")] == ["Quadro RTX 4000", "RTX 4000 Ada"]
    assert meanings("MI300X") == ()


@pytest.mark.parametrize(
    ("typed", "near"),
    [("h100 smx", "H100 PCIe 80GB"), ("rtx 409", "GeForce RTX 4090"), ("b20", "B200")],
)
def test_gpu_near_names_of_typo(typed, near):
    assert near_names(typed)[0] == near
    assert near_names("MI300X") == []


@pytest.mark.parametrize(
    ("name", "found", "capability"),
    [
        ("GRID K520", "GRID K520", (3, 0)),
        ("teslaa40", "A40", (8, 6)),
        ("teslaV100", None, (7, 0)),
        ("geforce_rtx_2080_s", "GeForce RTX 2080 SUPER", (7, 5)),
        ("nvidia-h100-mega-80gb", None, (9, 0)),
        ("nvidia-l4-vws", "L4", (8, 9)),
        ("a100l", "A100 SXM4 80GB", (8, 0)),
        ("A100-PG509-200", None, (8, 0)),
        ("A100-PG506-200", None, (8, 0)),
        ("DRIVE-PG199-PROD", "DRIVE PG199", (8, 0)),
        ("Tegra X2", "Jetson TX2", (6, 2)),
        ("GRID A100X-40C", None, (8, 0)),
    ],
)
def test_gpu_lookup_of_names_from_clusters(name, found, capability):
    """Names as administrators, clouds and old drivers write them."""
    row = lookup(name)
    assert row is not None
    assert row.capability == capability
    assert found is None or row.name == found


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("A100-SXM4-80GB MIG 3g.40gb", 40),
        ("a100_1g.5gb", 5),
        ("GRID A100X-40C", 40),
        ("A40-48Q", 48),
        ("A100-4-20C", 20),
    ],
)
def test_slice_has_memory_of_its_profile(name, memory):
    assert lookup(name).memory_gib == memory


@pytest.mark.parametrize("name", sorted(instances()))
def test_instance_type_is_a_gpu_of_the_table(name):
    rented = instance(name)
    assert rented.count >= 1
    assert rented.gpu in {row.name for row in gpu_table()}
    assert lookup(name).name == rented.gpu


@pytest.mark.parametrize(
    ("name", "gpu", "count"),
    [
        ("ND96amsr_A100_v4", "A100 SXM4 80GB", 8),
        ("standard_nd96amsr_a100_v4", "A100 SXM4 80GB", 8),
        ("ND H100 v5", "H100 SXM5 80GB", 8),
        ("nd-gb300-v6-series", "GB300", 4),
        ("ml.p5.48xlarge", "H100 SXM5 80GB", 8),
        ("A4X Max", "GB300", 4),
        ("NVIDIA DGX B200", "B200", 8),
        ("HGX-H200", "H200 SXM 141GB", 8),
    ],
)
def test_machine_by_another_spelling(name, gpu, count):
    assert (instance(name).gpu, instance(name).count) == (gpu, count)
    assert lookup(name).name == gpu


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("MI300X", "AMD"), ("mi250x", "AMD"), ("AMD Instinct MI355X", "AMD"), ("Radeon RX 7900 XTX", "AMD"),
        ("ND_MI300X_v5", "AMD"), ("BM.GPU.MI300X.8", "AMD"), ("g4ad.xlarge", "AMD"), ("Gaudi 3", "Intel"),
        ("hl-225", "Intel"), ("dl1.24xlarge", "Intel"), ("Intel Arc A770", "Intel"), ("Ascend 910B", "Huawei"),
        ("910C", "Huawei"), ("TPU v5p", "Google"), ("v5e-8", "Google"), ("trn2.48xlarge", "AWS"), ("M3 Max", "Apple"),
    ],
)  # fmt: skip
def test_what_is_no_nvidia_gpu_is_told_by_its_maker(name, maker):
    assert lookup(name) is None
    assert maker in unknown_gpu(name)
    assert "CUDA" in unknown_gpu(name)


@pytest.mark.parametrize("row", gpu_table(), ids=lambda row: row.name)
def test_no_nvidia_gpu_is_of_another_maker(row):
    """Nor is what people write for it, such as a name without its brand."""
    for name in (row.name, *row.aliases, row.name.partition(" ")[2]):
        assert meanings(name) or "CUDA" not in unknown_gpu(name)
