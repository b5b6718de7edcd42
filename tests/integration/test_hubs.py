"""Runs that take model and data by name from a ModelScope, or from a mirror of the Hub, on this machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.forkserver.client import HEAVY, LIGHT
from tests.hub_mirror import COMMIT, hub_mirror
from tests.integration.conftest import SHORT, dsrun
from tests.modelscope_server import modelscope_server

pytestmark = pytest.mark.train

TOKEN = "ms-1b6f-not-for-logs"
TWO_STEPS = [*SHORT, "--nproc", "2", "--max-steps", "2", "--save-steps", "1"]


@pytest.fixture
def modelscope(tiny, pairs, tmp_path):
    """A server with the models org/t5 and org/llama and the dataset org/data, all private, and the environment."""
    data = tmp_path / "data" / "pairs"
    data.mkdir(parents=True)
    for split in ("train", "validation"):
        shutil.copy(pairs[split], data)
    with modelscope_server() as server:
        server.token = TOKEN
        for name in ("t5", "llama"):
            server.add(f"models/org/{name}", Path(tiny[name]))
            server.repositories[f"models/org/{name}"]["master"]["README.md"] = b"---\nlicense: mit\n---\n"
        server.add("datasets/org/data", data.parent)
        server.private |= server.repositories.keys()
        server.environ = {
            "MODELSCOPE_DOMAIN": server.endpoint, "MODELSCOPE_CACHE": str(tmp_path / "ms"),
            "MODELSCOPE_API_TOKEN": TOKEN, "HOME": str(tmp_path),
        }  # fmt: skip
        yield server


def dsrun_command(*words, env):
    argv = [sys.executable, "-m", "dsrun", *map(str, words)]
    return LIGHT.run(argv, env={**os.environ, **env}, capture_output=True, text=True)


def test_run_from_modelscope(modelscope, tmp_path):
    """Two ranks download once; the names stay in recipe, run.json and card; a resumed run makes no request."""
    flags = ["--hub", "modelscope", "--model", "org/t5", "--dataset", "org/data", "--dataset-config", "pairs"]
    run = dsrun(*flags, *TWO_STEPS, output=tmp_path / "run", env=modelscope.environ).ok()
    assert len(modelscope.downloads) == len(modelscope.sent())
    assert {"pairs/train.jsonl", "model.safetensors"} <= modelscope.sent()
    recipe = json.loads((run.folder / "recipe.json").read_text())["values"]
    specs = json.loads((run.folder / "run.json").read_text())["specs"]["train"]
    for found in (recipe, specs):
        assert [found[name] for name in ("hub", "model", "dataset")] == ["modelscope", "org/t5", "org/data"]
    card = (run.folder / "model" / "README.md").read_text()
    assert "base_model: org/t5" in card
    assert "license: mit" in card
    assert "(https://modelscope.cn/models/org/t5)" in card
    assert "(https://modelscope.cn/datasets/org/data)" in card

    modelscope.requests.clear()
    modelscope.status = 503
    longer = [*flags, *TWO_STEPS, "--max-steps", "3"]
    again = dsrun(*longer, output=tmp_path / "run", env=modelscope.environ).ok()
    assert "resume" in again.events
    assert len(again.losses) == 3
    assert modelscope.requests == []
    held = [path for path in run.folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert held == []
    assert TOKEN not in run.err + again.err


def test_adapter_of_a_model_of_modelscope(modelscope, pairs, tmp_path):
    """--lora: the adapter names the folder of its base model, so that it can be exported without a network."""
    run = dsrun(
        "--hub", "modelscope", "--model", "org/llama", "--lora", "2", "--train-file", pairs["train"], *TWO_STEPS,
        output=tmp_path / "run", env=modelscope.environ,
    ).ok()  # fmt: skip
    base = json.loads((run.folder / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert base == str(tmp_path / "ms/models/org--llama/snapshots/master")
    argv = [sys.executable, "-m", "dsrun", "export", str(run.folder), "--to", str(tmp_path / "merged"), "--merge-lora"]
    done = HEAVY.run(argv, env={**os.environ, **modelscope.environ}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_prepare_and_plan_from_modelscope(modelscope, tmp_path):
    """`dsrun plan` downloads the config alone; after `dsrun prepare` nothing is asked for."""
    argv = ["plan", "--hub", "modelscope", "--model", "org/t5", "--gpus", "a100-80:2", "--count", "shapes"]
    planned = dsrun_command(*argv, env=modelscope.environ)
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.startswith("org/t5: t5, ")
    assert "--model org/t5 --hub modelscope" in planned.stdout
    assert not any(name.endswith(".safetensors") for name in modelscope.sent())
    flags = ["--hub", "modelscope", "--model", "org/t5", "--dataset", "org/data", "--dataset-config", "pairs"]
    argv = [sys.executable, "-m", "dsrun", "prepare", *flags]
    done = HEAVY.run(argv, env={**os.environ, **modelscope.environ}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "model.safetensors" in modelscope.sent()
    modelscope.requests.clear()
    dsrun(*flags, *TWO_STEPS, "--nproc", "1", output=tmp_path / "run", env=modelscope.environ).ok()
    assert modelscope.requests == []


def test_modelscope_errors_are_one_line(modelscope, tmp_path):
    """Found before any worker starts: a name without owner, a push. Found by a rank: a name that is not there."""
    environ = modelscope.environ
    for given, code, words in (
        (["--model", "t5-large"], 2, "--model t5-large: a name on ModelScope is OWNER/NAME"),
        (["--model", "org/t5", "--push-to-hub"], 2, "--push_to_hub pushes to the Hugging Face Hub"),
        (["--model", "org/nothing"], 2, "model org/nothing is not on ModelScope"),
    ):
        done = dsrun("--hub", "modelscope", *given, *SHORT, "--nproc", "1", output=tmp_path / "run", env=environ)
        errors = [line for line in done.err.splitlines() if line.startswith("error:")]
        assert (done.code, len(errors)) == (code, 1), done.err
        assert words in errors[0]


def test_run_through_a_mirror_of_the_hub(tiny, pairs, tmp_path):
    """HF_ENDPOINT reaches the ranks; a refusal names it."""
    with hub_mirror() as mirror:
        mirror.add("org/t5", Path(tiny["t5"]))
        environ = {"HF_ENDPOINT": mirror.endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}
        environ |= {"HF_HUB_DISABLE_TELEMETRY": "1"}
        flags = ["--train-file", pairs["train"], *TWO_STEPS]
        dsrun("--model", "org/t5", *flags, output=tmp_path / "run", env=environ).ok()
        assert f"/org/t5/resolve/{COMMIT}/model.safetensors" in mirror.requests
        for status, code, words in (
            (403, 4, f"model org/other: HF_ENDPOINT={mirror.endpoint} answered 403 for {mirror.endpoint}/org/other/"),
            (404, 4, f"model org/other: HF_ENDPOINT={mirror.endpoint} answered 404 for {mirror.endpoint}/org/other/"),
        ):
            mirror.status = status
            done = dsrun("--model", "org/other", *flags, output=tmp_path / f"r{status}", env=environ)
            assert done.code == code, done.err
            assert words in done.err
            assert done.err.count("error:") == 1
