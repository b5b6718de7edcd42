"""From what people type to TORCH_CUDA_ARCH_LIST, read back by DeepSpeed's own parser."""

import os
from contextlib import suppress
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.errors import UsageError
from dsrun.hardware.gpu_facts import gpu_table
from dsrun.wheel.platform.arch import (
    CudaArch,
    env_value,
    known_capabilities,
    parse_archs,
    runs_on,
    union,
)

archs = st.builds(lambda each, ptx: CudaArch(*each, ptx), st.sampled_from(known_capabilities()), st.booleans())


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("a100,h100", "8.0;9.0"),
        ("h100;a100", "8.0;9.0"),
        ("RTX 4090", "8.9"),
        ("8.0;9.0+PTX", "8.0;9.0+PTX"),
        ("9.0,9.0+ptx,8.0", "8.0;9.0+PTX"),
        ("8.0 9.0+PTX", "8.0;9.0+PTX"),
        ("8.6  7.5 , RTX A6000, NVIDIA H100 80GB HBM3", "7.5;8.6;9.0"),
        ("12.0, b200;10.0", "10.0;12.0"),
        ("8.0 ; 9.0;", "8.0;9.0"),
        ("a100+PTX", "8.0+PTX"),
        ("sm_80,compute_90,sm120", "8.0;9.0;12.0"),
        ("volta", "7.0"),
        ("Turing", "7.5"),
        ("ampere", "8.0;8.6"),
        ("ada", "8.9"),
        ("hopper+PTX", "9.0+PTX"),
        ("blackwell", "10.0;12.0"),
        ("pascal,maxwell", "5.0;5.2;6.0;6.1"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "8.0"),
    ],
)
def test_arch_list_mixes_names_and_capabilities(typed, value):
    assert env_value(parse_archs(typed)) == value


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", ["names no architecture", "a100,h100"]),
        (" ;, ", ["names no architecture"]),
        ("9.0a", ["DeepSpeed", "write 9.0"]),
        ("a100,sm_100f", ["'sm_100f'", "write 10.0"]),
        ("80", ["did you mean 8.0?"]),
        ("75;80", ["did you mean 7.5?"]),
        ("8.4", ["no GPU has the compute capability 8.4", "known: 8.0, 8.6, 8.7, 8.8, 8.9)"]),
        ("13.7", ["compute capability 13.7", "known: 3.0, 3.5, 3.7, 5.0"]),
        ("native", ["--arch auto"]),
        ("a100,auto", ["auto stands alone"]),
        ("cpu;8.0", ["cpu stands alone"]),
        ("rtx 4000", ["Quadro RTX 4000 (7.5) or RTX 4000 Ada (8.9)"]),
        ("voltaa", ["did you mean volta?"]),
        ("a100,h100 smx", ["'h100 smx'", "did you mean H100"]),
        ("MI300X", ["AMD", "CUDA", "give GPU names or capabilities"]),
        ("8.0 a100", ["'8.0 a100'"]),
        ("9" * 5000 + ".0", ["is known"]),
        ("sm_" + "9" * 5000, ["is known"]),
    ],
)
def test_ambiguous_arch_is_refused_with_hint(typed, words):
    with pytest.raises(UsageError) as caught:
        parse_archs(typed)
    for word in words:
        assert word in str(caught.value)


@given(st.lists(st.sampled_from(gpu_table()), min_size=1, max_size=5), st.sampled_from([",", ";", " , "]))
def test_gpu_names_give_sorted_capabilities(rows, separator):
    """Several GPU names give the sorted union of their capabilities."""
    parsed = parse_archs(separator.join(row.name for row in rows))
    assert [arch.capability for arch in parsed] == sorted({row.capability for row in rows})


@given(st.lists(archs, min_size=1, max_size=6))
def test_arch_list_round_trip(listed):
    """What goes into TORCH_CUDA_ARCH_LIST can be parsed again."""
    assert parse_archs(env_value(listed)) == union(listed)


@given(st.text(max_size=30))
def test_arch_list_of_any_text_parses_or_is_refused(text):
    with suppress(UsageError):
        assert parse_archs(text)


@pytest.fixture(scope="module")
def builder():
    from deepspeed.ops.op_builder.fused_adam import FusedAdamBuilder

    return FusedAdamBuilder()


@given(listed=st.lists(archs, min_size=1, max_size=6))
def test_deepspeed_parser_accepts_arch_list(builder, listed):
    """DeepSpeed's own parser turns every value into the -gencode flags that were meant."""
    with mock.patch.dict(os.environ, {"TORCH_CUDA_ARCH_LIST": env_value(listed)}):
        flags = builder.compute_capability_args()
        assert os.environ["TORCH_CUDA_ARCH_LIST"] == env_value(listed)
    wanted = []
    for arch in union(listed):
        number = f"{arch.major}{arch.minor}"
        wanted.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if arch.ptx:
            wanted.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    assert flags == wanted


@pytest.mark.parametrize(
    ("built", "gpu", "runs"),
    [
        ("8.0", (8, 6), True),
        ("8.6", (8, 0), False),
        ("8.6", (8, 9), True),
        ("8.0", (9, 0), False),
        ("8.0+PTX", (9, 0), True),
        ("9.0+PTX", (8, 0), False),
        ("10.0", (10, 3), True),
        ("12.0", (12, 1), True),
        ("10.0", (12, 0), False),
        ("8.6", (8, 7), False),  # Jetson Orin takes its own code only
        ("8.7", (8, 9), False),
        ("8.7", (8, 7), True),
        ("8.0+PTX", (8, 7), True),
    ],
)
def test_arch_runs_on_gpu(built, gpu, runs):
    assert runs_on(*parse_archs(built), gpu) is runs


def test_arch_as_text():
    assert [str(CudaArch(9, 0, True)), CudaArch(8, 0).name] == ["9.0+PTX", "8.0"]
