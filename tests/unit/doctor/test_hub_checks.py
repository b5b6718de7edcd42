"""What a job needs of the Hugging Face Hub."""

from pathlib import Path

import pytest

from dsrun.hub.modelscope_cache import ModelscopeAsset, record
from tests.unit.doctor.recorded import FINE, RecordedNetwork, codes, found_by, job, levels, recorded

HUB_HOST = ("huggingface.co", 443)
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
PUSH = ("--model", "demo-llama", "--push_to_hub")


def look(tmp_path: Path, *argv: str, environ: dict[str, str] | None = None, reachable=(HUB_HOST,)):
    here = recorded(tmp_path, environ=environ, network=RecordedNetwork(reachable=reachable))
    return found_by("hub", here, job(tmp_path, *argv))


def cached(tmp_path: Path, name: str, kind: str = "models") -> None:
    folder = tmp_path / f"home/.cache/huggingface/hub/{kind}--{name.replace('/', '--')}/snapshots/abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')


def test_job_that_needs_nothing_of_the_hub(tmp_path: Path) -> None:
    assert look(tmp_path, "--model", "demo-t5", reachable=()) == []


def test_model_and_data_set_in_cache_need_no_network(tmp_path: Path) -> None:
    cached(tmp_path, "org/small")
    cached(tmp_path, "org/data", "datasets")
    argv = ("--model", "org/small", "--dataset", "org/data")
    assert levels(look(tmp_path, *argv, environ={"HF_HUB_OFFLINE": "1"}, reachable=())) == FINE


@pytest.mark.parametrize(
    ("argv", "environ", "reachable", "expected"),
    [
        (("--model", "org/small"), {}, [HUB_HOST], []),
        (("--model", "org/small"), {}, [], ["hub_unreachable"]),
        (("--model", "org/small"), {"HF_HUB_OFFLINE": "1"}, [HUB_HOST], ["hub_offline"]),
        (("--model", "org/small"), {"HF_HUB_OFFLINE": "0"}, [HUB_HOST], []),
        (("--model", "org/small"), {"TRANSFORMERS_OFFLINE": "yes"}, [HUB_HOST], ["hub_offline"]),
        (("--model", "demo-t5", "--dataset", "org/data"), {}, [], ["hub_unreachable"]),
        (("--model", "org/small"), {"HF_ENDPOINT": "https://mirror.test:8443"}, [("mirror.test", 8443)], []),
        (("--model", "org/small"), {"HF_ENDPOINT": "mirror.test"}, [HUB_HOST], ["hub_endpoint"]),
        (("--model", "org/small"), {"https_proxy": "http://proxy.test:3128"}, [("proxy.test", 3128)], []),
        (("--model", "org/small"), {"HTTPS_PROXY": "proxy.test:3128"}, [HUB_HOST], ["hub_unreachable"]),
        (("--model", "org/small"), {"https_proxy": "http://p.test:1", "no_proxy": ".co"}, [HUB_HOST], []),
        (("--model", "meta-llama/Llama-3.1-8B"), {}, [HUB_HOST], ["hub_gated"]),
        (("--model", "meta-llama/Llama-3.1-8B"), {"HF_TOKEN": TOKEN}, [HUB_HOST], []),
        (("--model", "meta-llama/Llama-3.1-8B", "--token", TOKEN), {}, [HUB_HOST], []),
        (("--model", "org/small"), {"HF_TOKEN": "hf_abc\n"}, [HUB_HOST], ["hub_token_blank"]),
        (("--model", "org/small"), {"HF_TOKEN": "secret"}, [HUB_HOST], ["hub_token_form"]),
        (PUSH, {}, [HUB_HOST], ["hub_token_missing"]),
        (PUSH, {"HF_TOKEN": TOKEN}, [HUB_HOST], []),
        (PUSH, {"HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1"}, [HUB_HOST], ["hub_offline"]),
    ],
)
def test_what_job_needs_of_the_hub(tmp_path: Path, argv, environ, reachable, expected) -> None:
    found = look(tmp_path, *argv, environ=environ, reachable=reachable)
    assert codes(found) == expected
    assert expected or levels(found) == FINE
    assert not any(secret in f"{each.message} {each.fix}" for each in found for secret in (TOKEN, "secret", "hf_abc"))


def test_token_of_hf_auth_login(tmp_path: Path) -> None:
    file = tmp_path / "home/.cache/huggingface/token"
    file.parent.mkdir(parents=True)
    file.write_text(f"{TOKEN}\n")
    assert levels(look(tmp_path, "--model", "google/gemma-3-1b-pt")) == FINE
    assert codes(look(tmp_path, "--model", "google/gemma-3-1b-pt", environ={"HF_TOKEN_PATH": "/nowhere"})) == [
        "hub_gated"
    ]


MS_HOST = ("modelscope.cn", 443)


@pytest.mark.parametrize(
    ("environ", "reachable", "expected"),
    [
        ({}, [MS_HOST], []),
        ({}, [HUB_HOST], ["hub_unreachable"]),
        ({"HF_HUB_OFFLINE": "1", "HF_TOKEN": "secret"}, [MS_HOST], []),
        ({"MODELSCOPE_DOMAIN": "ms.test"}, [("ms.test", 443)], []),
    ],
)
def test_job_that_takes_from_modelscope(tmp_path: Path, environ, reachable, expected) -> None:
    """Its own address is what has to be reached; offline mode and token of the Hub say nothing about it."""
    found = look(tmp_path, "--hub", "modelscope", "--model", "org/m", environ=environ, reachable=reachable)
    assert codes(found) == expected


def test_model_in_the_cache_of_modelscope(tmp_path: Path) -> None:
    folder = tmp_path / "home/.cache/modelscope/models/org--m/snapshots/master"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    asset = ModelscopeAsset(kind="model", name="org/m")
    record(asset, folder, {"config.json": 2})
    assert levels(look(tmp_path, "--hub", "modelscope", "--model", "org/m", reachable=())) == FINE
    record(asset, folder, {"config.json": 2, "model.safetensors": 9})
    assert codes(look(tmp_path, "--hub", "modelscope", "--model", "org/m", reachable=())) == ["hub_unreachable"]
