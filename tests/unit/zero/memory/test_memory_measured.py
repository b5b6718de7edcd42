"""The plan against GPU memory that was measured: on an H100 and an H200, and by others on H200s."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from bench import memory_cases
from bench.memory import predict
from bench.plan import measured as runs
from bench.plan import peak_of
from bench.plan import predict as predicted
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.peak import ZeroStrategy, gpu
from dsrun.zero.memory.plan import plan
from dsrun.zero.memory.plan_request import PlanRequest, cluster
from dsrun.zero.memory.rank.activations import LIGER

GIB = 2**30
KNOWN = tomllib.loads((Path(__file__).parents[3] / "data" / "memory" / "measured.toml").read_text(encoding="utf-8"))
GPUS = {"h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200"}
STOCK = [record for record in runs() if record.id.startswith("stock/")]
MEASURED = [(name, run) for name in GPUS for run in KNOWN[name]["run"]]
LLAMA_8B = describe(memory_cases.LLAMA_8B | {"max_position_embeddings": 262_144})


def long_rows(tokens, **more):
    """The published runs."""
    fixed = {"stage": 3, "offload": "optimizer", "checkpointing": "on", "micro_batch": 1, "liger": LIGER}
    return PlanRequest(**({"model": LLAMA_8B, "cluster": cluster("h200:8"), "length": tokens} | fixed | more))


def total(request):
    recomputes = request.checkpointing == "on"
    strategy = ZeroStrategy(stage=request.stage, offload=request.offload or "none", checkpointing=recomputes)
    return gpu(request, strategy, request.micro_batch).total / GIB


@pytest.mark.parametrize(
    ("name", "run"), MEASURED, ids=[f"{name}-{run['model']}-{run['length']}-{len(run)}" for name, run in MEASURED]
)
def test_plan_is_within_five_percent_of_measured(name, run):
    """And never more than 3% too low: that is a run that dies."""
    request = PlanRequest(
        model=describe(getattr(memory_cases, run["model"]), from_scratch=True),
        cluster=cluster(f"{GPUS[name]}:1"),
        length=run["length"],
        source_length=run["length"],
        global_batch=run["micro_batch"] * run.get("accumulation", 1),
        micro_batch=run["micro_batch"],
        stage=2,
        checkpointing="on" if run.get("recompute") else "off",
        packed=run.get("packed", False),
        liger=LIGER if run.get("liger") else frozenset(),
    )
    measured = run["reserved"] + KNOWN[name]["beside"]
    assert -0.03 <= total(request) / measured - 1 <= 0.05


@pytest.mark.parametrize("record", STOCK, ids=lambda record: record.id)
def test_plan_of_stock_trainer_is_near_measured(record):
    """Within 12%, and never more than 5% too low."""
    assert -0.05 <= predicted(record) / record.bytes - 1 <= 0.12


def test_plans_of_stock_trainer_are_five_percent_off_at_most_in_the_median():
    assert median(abs(predicted(record) / record.bytes - 1) for record in STOCK) <= 0.05


def test_whole_logits_take_twelve_bytes_each():
    """What torch allocated when the loss was computed, to 0.1 GiB: no gradient is there yet."""
    peak = peak_of(STOCK[0])
    assert (peak.moment, peak.activations.logits) == ("loss", 12 * 4 * 2048 * 128_256)
    came = peak.states.gpu.total - peak.states.gpu.gradients + peak.activations.kept + peak.activations.logits
    assert came / GIB == pytest.approx(KNOWN["stock"]["run"][0]["allocated"], abs=0.1)


@pytest.mark.parametrize(("thousands", "published"), KNOWN["published"].items(), ids=str)
def test_plan_of_long_rows_is_near_published(thousands, published):
    request = long_rows(int(thousands) * 1024)
    assert total(request) == pytest.approx(published, rel=0.15)
    assert plan(request).choice is not None


def test_padding_mask_is_counted_where_there_is_one():
    """Several padded rows under sdpa; a single row, packed rows and flash attention have none."""
    request = replace(long_rows(32_768), micro_batch=2)
    masked = total(request)
    cells = 2 * 32_768**2
    for other in ({"packed": True}, {"attention": "flash"}):
        assert masked - total(replace(request, **other)) > cells * (1 + 2) / GIB
    assert total(replace(request, micro_batch=1)) < 0.6 * masked
    assert total(replace(request, micro_batch=1)) == total(replace(request, micro_batch=1, attention="flash"))


def test_liger_layers_keep_less():
    """Norms and gated parts that are computed again in the backward pass."""
    plain, liger = (
        total(long_rows(8192, stage=2, offload="none", checkpointing="off", liger=LIGER if each else frozenset()))
        for each in (False, True)
    )
    assert plain - liger > 32 * 8192 * (8 * 4096 + 14336 * 2) / GIB


def test_peak_of_recomputation_is_in_the_step():
    """What the H100 showed: a flat copy of the gradients, and beside it the one in fp32."""
    request = replace(long_rows(1024), model=describe(memory_cases.LLAMA_1B), cluster=cluster("h100:1"))
    found = gpu(request, ZeroStrategy(stage=2, offload="none", checkpointing=True), 1)
    assert found.at_step
    assert found.states.step == pytest.approx((2 + 4) * found.states.gpu.master / 4, rel=0.001)
    long = gpu(replace(request, length=65_536), ZeroStrategy(stage=2, offload="none", checkpointing=False), 1)
    assert not long.at_step


def test_cpu_rank_holds_the_denominators_of_adam():
    """Measured on 2026-11-26, two ranks, two steps (docs/benchmarks.md): the step is the peak there, too."""
    recomputing = next(case for case in memory_cases.ON_CPU if case.checkpointing and case.precision == "bf16")
    assert predict(recomputing, 2, None) / GIB == pytest.approx(1.92, rel=0.05)
