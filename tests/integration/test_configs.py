"""DeepSpeed takes what `dsrun config` prints: a real engine, one process group, three steps each.

What needs a GPU, an NVMe drive or an instruction this processor may lack is parsed by DeepSpeed's own models instead,
and listed below with the reason.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsrun.cli.config.command import command
from dsrun.datafiles import data_folder
from dsrun.zero.generate.config import SHIPPED
from tests.integration.conftest import many_engines

pytestmark = [pytest.mark.train, pytest.mark.exhaustive]

ALONE = "--for deepspeed"
OFFLOADED = "--offload-optimizer cpu"
SET = "--set zero_optimization"

# name -> flags. For the Trainer unless ALONE is among them.
RUNS = {
    "stage 0": f"--zero 0 {ALONE}",
    "stage 1": f"--zero 1 {ALONE}",
    "stage 2": f"--zero 2 {ALONE}",
    "stage 3": f"--zero 3 {ALONE}",
    "stage 2 offloaded": f"--zero 2 {OFFLOADED} {ALONE}",
    "stage 3 offloaded": f"--zero 3 {OFFLOADED} --offload-param cpu {ALONE}",
    "conservative": f"--zero 3 --preset conservative {ALONE}",
    "aggressive": f"--zero 3 --preset aggressive --model demo-llama {ALONE}",
    "fp32": f"--precision fp32 {ALONE}",
    "bf16, Trainer": "--precision bf16 --zero 3",
    "stage 0, Trainer": "--zero 0",
    "autocast": f"--torch-autocast bf16 {ALONE}",
    "autocast, Trainer": "--zero 3 --torch-autocast bf16",
    "bf16 states": f"--zero 3 --bf16-master-weights {ALONE}",
    "bf16 master weights offloaded": (
        f"--zero 3 --bf16-master-weights --set bf16.bf16_optimizer_states=false {OFFLOADED} {ALONE}"
    ),
    "bf16 states offloaded": f"--bf16-master-weights {OFFLOADED} {ALONE}",
    "fp32 gradients": f"--zero 1 --set data_types.grad_accum_dtype=fp32 {ALONE}",
    "fp32 sums": f"--zero 3 --grad-accum-dtype fp32 {ALONE}",
    "fp32 sums offloaded": f"--zero 3 --grad-accum-dtype fp32 {OFFLOADED} {ALONE}",
    "fp32 reduction": f"--set communication_data_type=fp32 {ALONE}",
    "adagrad": f"--optimizer adagrad --lr 0.1 {ALONE}",
    "sgd": f"--zero 3 --optimizer sgd --lr 10 {ALONE}",
    "adam": f"--optimizer adam {ALONE}",
    "own optimizer offloaded": f"--optimizer client {OFFLOADED}",
    "linear": f"--total-steps 100 --warmup-steps 2 {ALONE}",
    "cosine": f"--total-steps 100 --scheduler cosine --set scheduler.params.cos_min_ratio=0.1 {ALONE}",
    "cosine, Trainer": "--scheduler cosine --optimizer adamw",
    "linear, Trainer": "--scheduler linear --optimizer adamw",
    "batch": f"--global-batch-size 8 --micro-batch-size 2 --gpus 2 {ALONE}",
    "no norm": f"{SET}.compute_grad_norm=false --gradient-clipping 0 {ALONE}",
    "prescaled": f"--zero 1 --set prescale_gradients=true --set gradient_predivide_factor=2 {ALONE}",
    "sum": f"--set gradient_allreduce_op=sum {ALONE}",
    "split optimizer": f"--zero 3 {OFFLOADED} {SET}.offload_optimizer.ratio=0.5 {ALONE}",
    "universal": f"--set checkpoint.load_universal=true --set checkpoint.tag_validation=Fail {ALONE}",
    "monitors": (
        "--set tensorboard.output_path=TMP/board --set tensorboard.job_name=one --set csv_monitor.output_path=TMP/csv "
        f"--set steps_per_print=1 {ALONE}"
    ),
    "profilers": (
        "--set flops_profiler.output_file=TMP/flops --set comms_logger.enabled=true "
        f"--set wall_clock_breakdown=true {ALONE}"
    ),
    "fetching": (
        f"--zero 3 {SET}.stage3_use_all_reduce_for_fetch_params=true {SET}.leaf_module.names=mlp "
        f"{SET}.memory_efficient_linear=false {ALONE}"
    ),
    "one by one": f"--zero 3 {SET}.stage3_allgather_sequential=true {ALONE}",
    "aligned": f"{SET}.parameter_alignment=true {SET}.round_robin_gradients=true --no-overlap-comm {ALONE}",
    "odds and ends": (
        f"--set disable_python_gc=true --activation-checkpointing --set timers.throughput.enabled=false {ALONE}"
    ),
    "zenflow": f"--zenflow {OFFLOADED} {ALONE}",
    "muon": f"--zero 3 --optimizer muon {ALONE}",
    # Last: the groups of hpZ stay for the rest of the process.
    "hpz": f"--zero 3 --hpz 2 {ALONE}",
}
# Other groups of ranks than the plain ones, each in a launch of its own.
GROUPS = {
    "tensor parallel": f"--autotp 2 --micro-batch-size 2 --gpus 2 --lr 1 {ALONE}",
    "sequence parallel": f"--sequence-parallel 2 --gpus 2 {ALONE}",
}
PARSED = {
    "fp16": (f"--precision fp16 --set fp16.loss_scale=128 {ALONE}", "few processors compute in fp16"),
    "fp16, Trainer": ("--precision fp16", "the same"),
    "fp16 master weights": (
        f"--precision fp16 --set fp16.fp16_master_weights_and_grads=true {OFFLOADED} {ALONE}",
        "the same",
    ),
    "fp16 autocast": (f"--torch-autocast fp16 {ALONE}", "the same"),
    "lion": (f"--optimizer lion {ALONE}", "FusedLion is a CUDA kernel"),
    "lion offloaded": (f"--optimizer lion {OFFLOADED} {ALONE}", "CPU Lion would be compiled: minutes"),
    "lamb": (f"--optimizer lamb {ALONE}", "FusedLamb is a CUDA kernel"),
    "fused adam": (
        f"--set optimizer.params.torch_adam=false {ALONE}",
        "FusedAdam would be compiled: minutes",
    ),
    "qwZ": (f"--zero 3 --qwz --qgz {ALONE}", "the quantizer is a CUDA kernel"),
    "frozen weights": (
        f"--zero 3 --precision fp16 {SET}.zero_quantized_nontrainable_weights=true {ALONE}",
        "the same",
    ),
    "superoffload": (
        f"--zero 3 {OFFLOADED} --super-offload {SET}.offload_optimizer.cpuadam_cores_perc=0.9 {ALONE}",
        "asserts CUDA",
    ),
    "zenflow 3": (f"--zero 3 --zenflow {OFFLOADED} {ALONE}", "ZeRO-3's ZenFlow names the device cuda"),
    "deepcompile": (
        f"--zero 3 --deepcompile --set compile.passes=z3 {ALONE}",
        "its op is compiled with CUDA",
    ),
    "deepcompile offload": (
        f"--zero 3 --deepcompile --set compile.offload_activation=true {ALONE}",
        "the same",
    ),
    "nvme": (
        "--zero 3 --offload-optimizer nvme --offload-param nvme --nvme-path TMP "
        f"{SET}.offload_optimizer.pipeline_read=true {ALONE}",
        "wants libaio and a drive",
    ),
    "experts": (
        f"--autoep 2 --set expert_parallel.preset_model=mixtral {ALONE}",
        "wants a mixture of experts",
    ),
    "wandb": (f"--set wandb.project=p --set wandb.group=g --set wandb.team=t {ALONE}", "wants a network"),
    "comet": (
        f"--set comet.project=p --set comet.workspace=w --set comet.experiment_name=e {ALONE}",
        "wants a network",
    ),
    "fast writer": (
        f"--set checkpoint.writer.type=fast --set checkpoint.writer.decoupled=true {ALONE}",
        "wants libaio",
    ),
}
UNFIT_SHIPPED = {
    "zero3_nvme.json": "wants libaio; the test of the real wheel, which has it, runs this one",
    "zero3_superoffload.json": "asserts CUDA",
    "zero3_zeropp.json": "the quantizer is a CUDA kernel",
}


def printed(flags: str, folder: Path) -> dict:
    done = CliRunner().invoke(command, flags.replace("TMP", str(folder)).split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def case(name: str, flags: str, folder: Path) -> dict:
    target = "deepspeed" if ALONE in flags else "trainer"
    return {"name": name, "config": printed(flags, folder), "target": target}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Every plain case and every shipped file that a CPU can run."""
    folder = tmp_path_factory.mktemp("engines")
    cases = [
        {
            "name": name,
            "config": json.loads((data_folder("ds_configs") / name).read_text()),
            "target": spec.target,
        }
        for name, spec in SHIPPED.items()
        if name not in UNFIT_SHIPPED
    ]
    cases += [case(name, flags, folder) for name, flags in RUNS.items()]
    return many_engines(cases, folder)


@pytest.mark.parametrize("name", [*RUNS, *(name for name in SHIPPED if name not in UNFIT_SHIPPED)])
def test_deepspeed_config_runs_engine_steps(ran, name, tmp_path):
    """A real engine takes its steps under each printed or shipped config."""
    config = (
        printed(RUNS[name], tmp_path) if name in RUNS else json.loads((data_folder("ds_configs") / name).read_text())
    )
    found = ran[name]
    assert found["engine"] == "DeepSpeedEngine"
    assert found["stage"] == config["zero_optimization"]["stage"]
    assert found["moved"]
    # ZenFlow steps every fourth time; every other engine took three optimizer steps.
    assert found["steps"] == 3 or "zenflow" in name
    assert 3 < found["loss"] < 5


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fp32", {"dtype": "torch.float32", "basic": "AdamW"}),
        ("bf16, Trainer", {"dtype": "torch.bfloat16"}),
        ("autocast", {"dtype": "torch.float32"}),
        ("stage 2 offloaded", {"basic": "DeepSpeedCPUAdam"}),
        ("own optimizer offloaded", {"basic": "AdamW"}),
        ("adam", {"basic": "Adam"}),
        ("sgd", {"basic": "SGD"}),
        ("fp32 gradients", {"optimizer": "BF16_Optimizer"}),
        ("zenflow", {"basic": "ZenFlowCPUAdam"}),
        ("muon", {"basic": "MuonWithAuxAdam"}),
        ("zero3_offload.json", {"basic": "DeepSpeedCPUAdam", "optimizer": "DeepSpeedZeroOptimizer_Stage3"}),
    ],
)
def test_deepspeed_engine_has_configured_optimizer_and_dtype(ran, name, expected):
    """The engine, its optimizer and its dtype are those that were asked for."""
    assert {key: ran[name][key] for key in expected} == expected


@pytest.mark.parametrize("name", GROUPS)
def test_deepspeed_config_tensor_and_sequence_parallel(name, tmp_path):
    """Engines with process groups of their own, each in a launch of its own, take their steps."""
    found = many_engines([case(name, GROUPS[name], tmp_path)], tmp_path)[name]
    assert found["engine"] == "DeepSpeedEngine"
    assert found["moved"]
    assert found["steps"] == 3


@pytest.mark.parametrize("name", PARSED)
def test_deepspeed_parses_config_for_missing_hardware(name, tmp_path):
    """DeepSpeed parses generated configs that this machine cannot run."""
    flags, reason = PARSED[name]
    assert reason
    parse(printed(flags, tmp_path))


@pytest.mark.parametrize("name", UNFIT_SHIPPED)
def test_deepspeed_parses_shipped_config_for_missing_hardware(name):
    """DeepSpeed parses shipped configs that this machine cannot run."""
    parse(json.loads((data_folder("ds_configs") / name).read_text()))


def parse(config: dict) -> None:
    """DeepSpeed's own reading of a configuration, with what the Trainer would have filled."""
    from deepspeed.runtime.config import DeepSpeedConfig

    def filled(value):
        if isinstance(value, dict):
            return {key: filled(each) for key, each in value.items()}
        return 1 if value == "auto" else value

    config = filled({**config, "train_batch_size": None})
    for block in ("bf16", "fp16"):
        config[block]["enabled"] = config[block]["enabled"] is True
    parsed = DeepSpeedConfig({key: value for key, value in config.items() if value is not None})
    assert parsed.zero_optimization_stage == config["zero_optimization"]["stage"]
