"""Findings and causes in Chinese, command by command; JSON, help and errors in English."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import MANIFEST
from dsrun.runs.node_status import NodeStatus, write_node_status
from tests.run_folders import at, event, write_run

CORPUS = Path(__file__).parents[1] / "data"
OOM = str(CORPUS / "causes" / "cuda_oom" / "tr-oom.txt")
CHINESE = re.compile("[\u4e00-\u9fff]")
CONFIG = {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}, "optimzer": {}, "train_batch_size": 8}
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=4\n#SBATCH --outpt=log\ntorchrun --nnodes=1 train.py\n"


LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000,
}  # fmt: skip


@pytest.fixture
def inputs(here):
    """What each command finds something in, below the folder it is called in."""
    (here / "ds.json").write_text(json.dumps(CONFIG))
    (here / "job.sh").write_text(SCRIPT)
    (here / "checkpoint-5").mkdir()
    (here / "checkpoint-5" / MANIFEST).write_text("{")
    for path in (here / "checkpoint-5" / MANIFEST, here / "checkpoint-5"):
        os.utime(path, (1e9, 1e9))  # or its age in seconds may be another one at the next call
    failure = event("failure", 1.0, cause="cuda_oom", rank=1, message="CUDA out of memory")
    write_run(here / "run", events=[event("start", 0.0), failure])
    return here


COMMANDS = {
    ("diagnose", OOM): "原因     cuda_oom: 显存不足",
    ("diagnose", "run"): "显存不足",
    ("config", "check", "ds.json"): "offload_param 需要阶段 3；阶段 2 会忽略它 [offload_needs_stage]",
    ("check-slurm", "job.sh"): "sbatch 没有选项 --outpt，拒绝这个脚本 [script_option_unknown]",
    (
        "checkpoint",
        "verify",
        "checkpoint-5",
    ): "checkpoint-5: 无法读取它的清单，因此无法检查它的文件 [checkpoint_incomplete]",
    ("checkpoint", "list", "."): "damaged: checkpoint-5: 无法读取它的清单，因此无法检查它的文件",
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_findings_are_printed_in_chinese(dsrun, environ, inputs, command):
    english = dsrun(*command)
    environ["LANG"] = "zh_CN.UTF-8"
    environ.pop("LC_ALL", None)
    chinese = dsrun(*command)
    assert COMMANDS[command] in chinese.stdout
    assert (chinese.returncode, chinese.stderr) == (english.returncode, english.stderr)
    assert not CHINESE.search(english.stdout)
    environ["DSRUN_LANG"] = "en"
    assert dsrun(*command).stdout == english.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_json_stays_english(dsrun, environ, inputs, command):
    english = dsrun(*command, "--format", "json")
    environ["DSRUN_LANG"] = "zh"
    assert dsrun(*command, "--format", "json").stdout == english.stdout
    assert english.stdout.isascii()


def test_findings_about_a_job_are_printed_in_chinese(dsrun, environ, here):
    environ["DSRUN_LANG"] = "zh"
    done = dsrun("render-slurm", "--nodes", "1", "--setup-file", "gone.sh", "--", "python", "gone.py")
    assert "gone.py 不在这台机器上" in done.stderr


def test_findings_of_a_running_run_are_printed_in_chinese(dsrun, environ, here):
    """`dsrun monitor`, of a run that is held, and a node of it that has been silent for years."""
    environ["DSRUN_LANG"] = "zh"
    folder = write_run(here / "run", events=[event("start", 0.0), event("training", 1.0, step=0, max_steps=9)])
    write_node_status(folder, NodeStatus(time=at(0), host="gpu07", node=0, attempt=0, world_size=1))
    with RunFolder(folder).acquire():
        done = dsrun("monitor", "run", "--once")
    assert "以下节点没有状态更新：gpu07" in done.stdout


def test_notes_of_a_plan_are_printed_in_chinese(dsrun, environ, here):
    environ["DSRUN_LANG"] = "zh"
    (here / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": {"quant_method": "fp8"}}))
    done = dsrun("plan", "--model", ".", "--count", "shapes", "--gpus", "a100-80:1")
    assert done.stderr.startswith("note: .: 权重已量化 (fp8)：")


def test_report_has_findings_in_chinese(dsrun, environ, inputs):
    environ["DSRUN_LANG"] = "zh"
    assert dsrun("report", "run", "-o", "page.html").returncode == 0
    page = (inputs / "page.html").read_text(encoding="utf-8")
    assert "显存不足" in page
    assert "--micro-batch-size 减半" in page


@pytest.mark.parametrize("args", [["--help"], [], ["--nope"], ["gone.log"]], ids=str)
def test_help_and_errors_stay_english(dsrun, environ, args):
    """click's own texts too, which gettext would take from a catalogue of this language."""
    english = dsrun("diagnose", *args)
    environ.update(LANG="zh_CN.UTF-8", LANGUAGE="zh_CN", DSRUN_LANG="zh")
    chinese = dsrun("diagnose", *args)
    assert (chinese.stdout, chinese.stderr) == (english.stdout, english.stderr)
    assert (english.stdout + english.stderr).isascii()


def test_unknown_language_is_a_note_and_english(dsrun, environ):
    english = dsrun("diagnose", OOM)
    environ["DSRUN_LANG"] = "klingon"
    done = dsrun("diagnose", OOM)
    assert done.stderr == "note: DSRUN_LANG=klingon is not a language of dsrun: English is used (en or zh)\n"
    assert done.stdout == english.stdout


def test_english_where_stdout_cannot_write_chinese(dsrun, environ):
    environ.update(DSRUN_LANG="zh", PYTHONIOENCODING="iso-8859-1")
    assert "cuda_oom: GPU memory exhausted" in dsrun("diagnose", OOM).stdout
