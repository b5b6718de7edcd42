"""GRES and TRES strings as SLURM prints them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.errors import UsageError
from dsrun.hardware.gres import parse_gres, written_gpus


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:a100:4(S:0-1)", [("a100", 4, (8, 0))]),
        ("gpu:a100:4(S:0,1),gpu:v100:2(S:0-1)", [("a100", 4, (8, 0)), ("v100", 2, (7, 0))]),
        ("gpu:4", [(None, 4, None)]),
        ("gpu", [(None, 1, None)]),
        ("gpu:a100", [("a100", 1, (8, 0))]),
        ("gpu:1g.10gb:7", [("1g.10gb", 7, None)]),
        ("gpu:a100_1g.5gb:2", [("a100_1g.5gb", 2, (8, 0))]),
        ("gpu:nvidia_h100_80gb_hbm3_3g.40gb:2", [("nvidia_h100_80gb_hbm3_3g.40gb", 2, (9, 0))]),
        ("gpu:nvidia_a100-sxm4-80gb:8(S:0-7)", [("nvidia_a100-sxm4-80gb", 8, (8, 0))]),
        ("gpu:rtx_2080_ti:8", [("rtx_2080_ti", 8, (7, 5))]),
        ("gpu:1080ti:8", [("1080ti", 8, (6, 1))]),
        ("gpu:4090:2", [("4090", 2, (8, 9))]),
        ("gpu:a100-80:8", [("a100-80", 8, (8, 0))]),
        ("gpu:gold:2", [("gold", 2, None)]),
        ("gpu:volta:2", [("volta", 2, None)]),  # V100 or Xavier
        ("gpu:rtx4000:1", [("rtx4000", 1, None)]),
        ("gpu:a100:no_consume:4", [("a100", 4, (8, 0))]),
        ("gpu:no_consume:4", [(None, 4, None)]),
        ("gpu:a100:2K", [("a100", 2048, (8, 0))]),
        ("gpu:a100:0(IDX:N/A)", [("a100", 0, (8, 0))]),
        ("gpu:(null):2(IDX:0-1)", [(None, 2, None)]),
        ("gres:gpu:2", [(None, 2, None)]),
        ("gres/gpu:h100:8", [("h100", 8, (9, 0))]),
        ("gres/gpu:a100=4", [("a100", 4, (8, 0))]),
        ("cpu=8,mem=3G,node=1,billing=8,gres/gpu=6,gres/gpu:a100=4", [("a100", 4, (8, 0)), (None, 2, None)]),
        ("gres/gpu=4,gres/gpu:a100=4,gres/shard=12", [("a100", 4, (8, 0))]),
        ("gres/gpu=4", [(None, 4, None)]),
        ("mps:400,gpu:t4:4,shard:t4:16", [("t4", 4, (7, 5))]),
        ("craynetwork:4,bandwidth:lustre:no_consume:4G", []),
        ("gpu:a100:2,gpu:a100:2", [("a100", 2, (8, 0)), ("a100", 2, (8, 0))]),
        (" GPU:A100:4 , gpu:V100:2", [("A100", 4, (8, 0)), ("V100", 2, (7, 0))]),
        ("gpu:a100:2(IDX:0,1),shard:8", [("a100", 2, (8, 0))]),
        ("craynetwork:1,gpu:2", [(None, 2, None)]),
        ("gpu:nvidia_a100_1g.10gb+me:1(S:0)", [("nvidia_a100_1g.10gb+me", 1, (8, 0))]),
        ("gpu:a100:2(IDX:0-1),mps:0(IDX:N/A),shard:a100:0/16(0/8,0/8)", [("a100", 2, (8, 0))]),
        (
            "cpu=00:00:12,energy=N/A,fs/disk=23,mem=6.50G,license/x@host=2,gres/gpu:h100=8",
            [("h100", 8, (9, 0))],
        ),
        ("(null)", []),
        ("(null),gpu:2", [(None, 2, None)]),
        ("N/A", []),
        ("", []),
    ],
)
def test_gres_forms(text, found):
    assert [(gpus.type, gpus.count, gpus.capability) for gpus in parse_gres(text)] == found


@pytest.mark.parametrize("text", ["gpu:a100:x:4", "gpu:a100:h100", "gres/gpu:a100=many", "gpu:a100:" + "9" * 5000])
def test_gres_malformed_gpu_shows_valid_forms(text):
    with pytest.raises(UsageError, match=r"is not a GRES for GPUs.*gpu:a100:4"):
        parse_gres(text)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense((",
        "gpu:a100:4,)",
        "two words",
        "a100 a100",
        "Gres=gpu:a100:4(S:0-1)",  # a line of `scontrol show node`, whose value alone is a list
        "AllocTRES=cpu=8,gres/gpu=4",
        "gpu:a100 80:4",
        "{gpu}",
        "gpu:4|gpu:2",
        "gpu:-4",
        "mem=much",
        "gpu:a100:4\ngpu:v100:2",
        ":",
        "=",
    ],
)
def test_gres_that_slurm_would_not_print_is_refused(text):
    with pytest.raises(UsageError, match="is not a GRES"):
        parse_gres(text)


kinds = st.sampled_from(["a100", "h100", "rtx_2080_ti", "1g.10gb", "nvidia_a100-sxm4-40gb", None])
remarks = st.sampled_from(["", "(S:0-1)", "(S:0,2-3)", "(IDX:0-3,5)"])


@given(st.lists(st.tuples(kinds, st.integers(0, 64), remarks), max_size=5))
def test_gres_round_trip(entries):
    text = ",".join(f"gpu:{kind}:{n}{r}" if kind else f"gpu:{n}{r}" for kind, n, r in entries)
    assert [(gpus.type, gpus.count) for gpus in parse_gres(text)] == [(kind, n) for kind, n, _ in entries]
    assert ",".join(map(str, parse_gres(text))) == ",".join(
        f"gpu:{kind}:{n}" if kind else f"gpu:{n}" for kind, n, _ in entries
    )


@given(st.text(alphabet="gpu:a10,()=/ .-_k", max_size=30))
def test_gres_of_any_text_parses_or_is_refused(text):
    with suppress(UsageError):
        assert all(gpus.count >= 0 for gpus in parse_gres(text))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        *((text, "a100:8") for text in ("a100:8", "8xa100", "a100x8", "a100*8", "8*a100", "8 x a100", "gpu:a100:8")),
        ("gres/gpu:a100:8", "a100:8"),
        ("rtx4090x2", "rtx4090:2"),
        ("mine*4", "mine:4"),
        # Names of GPUs, and what might be one of a site.
        *((text, text) for text in ("rtx4090", "A100X", "a100x:4", "minex4", "p4d.24xlarge", "8", "gpu:8", "")),
    ],
)
def test_counted_gpus_as_people_write_them(text, meant):
    assert written_gpus(text) == meant
