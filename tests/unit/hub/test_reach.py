"""Whether a job's hub can be reached, asked before its ranks would wait minutes for it; and answers that refuse."""

from __future__ import annotations

import socket

import pytest

from dsrun.diagnosis.rules import cause_named
from dsrun.errors import MissingError, UsageError
from dsrun.hub.reach import CAUSE, HubAddress, check_hub, downloads, other_sources, refused
from dsrun.recipe.resolve import resolve

MODELSCOPE = ("--hub", "modelscope")


@pytest.fixture
def job(tmp_path):
    """The recipe of these flags, and an environment with empty caches."""

    def call(*flags, **environ):
        return resolve([*flags, "--train-file", "x.jsonl"], tmp_path), {"HOME": str(tmp_path), **environ}

    return call


@pytest.fixture
def nobody():
    """The address of a port that nobody listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("flags", [("--model", "org/m"), ("--model", "org/m", *MODELSCOPE)])
def test_hub_without_answer_is_told_before_the_start(job, nobody, flags):
    variable = "MODELSCOPE_ENDPOINT" if MODELSCOPE[0] in flags else "HF_ENDPOINT"
    with pytest.raises(MissingError, match=r"127.0.0.1 cannot be reached, to download org/m") as caught:
        check_hub(*job(*flags, **{variable: nobody}))
    assert f"{variable}" in caught.value.fix
    assert caught.value.cause == CAUSE


def test_hub_that_answers_is_used(job):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        check_hub(*job("--model", "org/m", HF_ENDPOINT=address))
        check_hub(*job("--model", "org/m", *MODELSCOPE, MODELSCOPE_DOMAIN=address))


def test_hub_is_not_asked_without_need(job, nobody, tmp_path):
    """Nothing to download, offline mode, a job that was put back into the queue."""
    (tmp_path / "folder").mkdir()
    for flags, environ in (
        (("--model", "demo-t5"), {}),
        (("--model", str(tmp_path / "folder")), {}),
        (("--model", "org/m"), {"HF_HUB_OFFLINE": "1"}),
        (("--model", "org/m"), {"SLURM_JOB_ID": "1", "SLURM_RESTART_COUNT": "1"}),
    ):
        check_hub(*job(*flags, HF_ENDPOINT=nobody, **environ))


def test_offline_mode_of_the_hub_is_not_that_of_modelscope(job, nobody):
    with pytest.raises(MissingError, match="cannot be reached"):
        check_hub(*job("--model", "org/m", *MODELSCOPE, MODELSCOPE_ENDPOINT=nobody, HF_HUB_OFFLINE="1"))


def test_hub_address_that_is_none(job):
    with pytest.raises(
        UsageError, match=r"HF_ENDPOINT=mirror.test is not an address \(unset it, or export HF_ENDPOINT"
    ):
        check_hub(*job("--model", "org/m", HF_ENDPOINT="mirror.test"))


def test_hub_addresses(job):
    """A domain of ModelScope may stand without its scheme, as for the package itself."""
    for flags, environ, variable, address in (
        ((), {}, "HF_ENDPOINT", "https://huggingface.co"),
        (MODELSCOPE, {}, "MODELSCOPE_ENDPOINT", "https://modelscope.cn"),
        (MODELSCOPE, {"MODELSCOPE_DOMAIN": "ms.test"}, "MODELSCOPE_DOMAIN", "https://ms.test"),
        (MODELSCOPE, {"MODELSCOPE_ENDPOINT": "http://a", "MODELSCOPE_DOMAIN": "b"}, "MODELSCOPE_ENDPOINT", "http://a"),
    ):
        assert HubAddress.of(*job("--model", "org/m", *flags, **environ)) == HubAddress(
            variable=variable, address=address
        )


def test_downloads_name_models_and_data_sets(tmp_path):
    recipe = resolve(["--model", "org/m", "--tokenizer", "org/t", "--dataset", "org/d", *MODELSCOPE], tmp_path)
    assert sorted(downloads(recipe, {"HOME": str(tmp_path)})) == ["data set org/d", "org/m", "org/t"]


class Answer:
    """What an HTTP client's error holds of the answer."""

    def __init__(self, status, **headers):
        self.status_code, self.headers, self.url = (
            status,
            headers,
            "http://u:p@mirror.test/org/m/resolve/main/config.json",
        )


def answered(status, **headers):
    try:
        error = ConnectionError("refused")
        error.response = Answer(status, **{name.replace("_", "-"): value for name, value in headers.items()})
        raise OSError("We couldn't connect") from error
    except OSError as outer:
        return refused("model org/m", outer, {"HF_ENDPOINT": "http://mirror.test"}, instead="--model DIR")


def test_answer_of_a_mirror_names_it():
    """With its status and address, without the password in that."""
    for status, fix in (
        (403, "hf auth login"),
        (404, "check the name and HF_ENDPOINT"),
        (429, "try again later"),
        (503, "later"),
    ):
        error = answered(status)
        assert error.message.startswith(f"model org/m: HF_ENDPOINT=http://mirror.test answered {status} for http://")
        assert "u:p@" not in error.message
        assert fix in error.fix
        assert error.exit_code == 4


def test_answers_that_the_library_explains():
    """The Hub says in a header what is not there: an unknown name is no question of access."""
    assert answered(404, X_Error_Code="RepoNotFound") is None
    assert answered(401, X_Error_Code="RepoNotFound") is None
    assert refused("model m", ValueError("no answer at all"), {}, instead="--model DIR") is None


def test_cause_of_the_hub_names_the_same_sources():
    """Advice of the running command and of `dsrun diagnose` is one."""
    assert other_sources() in cause_named(CAUSE).fix
