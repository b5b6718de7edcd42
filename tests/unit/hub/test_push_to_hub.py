"""The push of a finished model: checked before training, done once, and never lost in silence."""

from __future__ import annotations

import pytest
from huggingface_hub import constants

from dsrun.errors import MissingError, UsageError
from dsrun.hub.push import HubRepository, check_push, final_folder
from dsrun.recipe.resolve import resolve
from dsrun.runs.folder import RunFolder
from dsrun.system import variables
from tests.hub_server import hub_server


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with hub_server() as server:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-login"))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield server


@pytest.fixture
def recipe(tmp_path):
    def call(*flags, push=True):
        return resolve(["--model", "m", *(["--push-to-hub"] if push else []), *flags], tmp_path)

    return call


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "run" / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "README.md").write_text("---\ntags: [dsrun]\n---\nText\n")
    (folder / "sub" / "weights").write_bytes(b"\0\1")
    return folder


WRITER = ("--hub-token", "hf_writer")


def test_push_uploads_the_folder_once(hub, recipe, model):
    flags = ("--hub-model-id", "org/mine", "--hub-private-repo", "true", "--hub-revision", "v2", *WRITER)
    check_push(recipe(*flags), model.parent, {})
    assert hub.created[0]["organization"] == "org"
    assert hub.created[0].get("visibility", hub.created[0].get("private")) in ("private", True)
    beats = []
    url = HubRepository.wanted(recipe(*flags), model.parent).push(model, beat=lambda: beats.append(1))
    assert url.startswith(f"{hub.endpoint}/org/mine/commit/")
    assert hub.repositories["org/mine"].keys() == {"README.md", "sub/weights"}
    assert hub.repositories["org/mine"]["sub/weights"] == b"\0\1"
    assert (hub.branches, hub.commits) == (["v2"], ["v2"])


def test_push_name_is_by_default_that_of_the_run(hub, recipe, model):
    check_push(recipe(*WRITER), model.parent, {})
    assert list(hub.repositories) == ["somebody/run"]


def test_nothing_is_checked_without_push_to_hub(hub, recipe, model):
    check_push(recipe(push=False), model.parent, {})
    assert not hub.repositories


def test_push_needs_a_token(hub, recipe, model, monkeypatch):
    with pytest.raises(MissingError, match=r"--push_to_hub needs an access token \(`hf auth login`"):
        check_push(recipe(), model.parent, {})
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    check_push(recipe(), model.parent, {})
    assert hub.created


@pytest.mark.parametrize("known", [True, False])
def test_push_token_that_may_only_read(hub, recipe, model, known):
    """Also where the repository is there, which create_repo takes for good."""
    if known:
        hub.repositories["somebody/run"] = {}
    name = ("--hub-model-id", "somebody/run")
    with pytest.raises(MissingError, match=r"--push_to_hub: the Hub answered 403: .* \(leave it out and upload"):
        check_push(recipe(*name, "--hub-token", "hf_reader"), model.parent, {})


def test_push_token_that_the_hub_does_not_know(hub, recipe, model):
    with pytest.raises(MissingError, match="the Hub answered 401") as caught:
        check_push(recipe("--hub-token", "hf_unknownunknownunknown"), model.parent, {})
    assert "hf_unknown" not in str(caught.value)


def test_push_to_a_hub_that_cannot_be_reached(hub, recipe, model, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(MissingError, match="--push_to_hub: the Hub cannot be reached"):
        check_push(recipe(*WRITER), model.parent, {})
    check_push(recipe(*WRITER), model.parent, {variables.ATTEMPT: "1"})


def test_push_offline_is_refused(hub, recipe, model, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="--push_to_hub: HF_HUB_OFFLINE is set"):
        check_push(recipe(*WRITER), model.parent, {})


def test_push_to_an_invalid_name(hub, recipe, model):
    with pytest.raises(UsageError, match="--hub_model_id a/b/c"):
        check_push(recipe("--hub-model-id", "a/b/c", *WRITER), model.parent, {})


def test_failed_push_names_the_command_that_repeats_it(hub, recipe, model):
    hub.failing = "/commit/main"
    wanted = HubRepository.wanted(
        recipe("--hub-model-id", "org/mine", "--hub-private-repo", "true", *WRITER), model.parent
    )
    with pytest.raises(MissingError) as caught:
        wanted.push(model, beat=lambda: None)
    assert caught.value.message.startswith("the run is finished, but its model was not pushed: the Hub answered 503")
    assert caught.value.fix == f"push it again: hf upload org/mine {model} --private"


def test_what_is_pushed_of_a_lora_run(recipe, tmp_path):
    run = RunFolder(tmp_path)
    assert final_folder(recipe(), run) == run.model
    assert final_folder(recipe("--lora", "8"), run) == run.adapter


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--hub-strategy", "every_save"), "--hub_strategy every_save: the finished model is pushed, once"),
        (("--do-eval",), "--push_to_hub: without training there is no model to push"),
    ],
)
def test_push_settings_that_are_refused(recipe, flags, message):
    with pytest.raises(UsageError, match=message):
        recipe(*flags)


def test_push_settings_without_push_are_noted(recipe):
    assert recipe("--hub-strategy", "end").notices == ()
    notices = recipe("--hub-model-id", "org/mine", push=False).notices
    assert notices == ("--hub_model_id org/mine has no effect without --push_to_hub",)
