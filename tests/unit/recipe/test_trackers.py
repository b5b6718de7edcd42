from __future__ import annotations

from pathlib import Path

import pytest

from dsrun.errors import MissingError, UsageError
from dsrun.recipe import trackers as packages
from dsrun.recipe.resolve import resolve
from dsrun.recipe.trackers import KNOWN, check_packages, environment, trackers


def variables(tmp_path, *flags, environ=None, online=False):
    recipe = resolve(["--model", "m", *flags], tmp_path)
    asked = []

    def reachable(host):
        asked.append(host)
        return online

    home = {"HOME": str(tmp_path)}
    wanted, notice = environment(recipe, Path("runs/x"), home | (environ or {}), reachable=reachable)
    return wanted, notice, asked


def test_wandb_project_alone_turns_wandb_on(tmp_path):
    assert trackers(resolve(["--model", "m", "--wandb-project", "p"], tmp_path)) == ["wandb"]
    assert variables(tmp_path, "--wandb-project", "p")[0]["WANDB_PROJECT"] == "p"


def test_wandb_offline_without_api_key(tmp_path):
    """Without a key, wandb goes offline without asking the network."""
    wanted, notice, asked = variables(tmp_path, "--report-to", "wandb")
    assert wanted["WANDB_MODE"] == "offline"
    assert "no API key" in notice
    assert not asked


@pytest.mark.parametrize(("online", "mode"), [(True, None), (False, "offline")])
def test_wandb_with_api_key_offline_only_without_network(tmp_path, online, mode):
    wanted, _, asked = variables(tmp_path, "--report-to", "wandb", environ={"WANDB_API_KEY": "k"}, online=online)
    assert wanted.get("WANDB_MODE") == mode
    assert asked == ["api.wandb.ai"]


def test_wandb_api_key_from_netrc(tmp_path):
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    wanted, _, _ = variables(tmp_path, "--report-to", "wandb", online=True)
    assert "WANDB_MODE" not in wanted


def test_wandb_mode_of_user_kept(tmp_path):
    wanted, notice, _ = variables(tmp_path, "--report-to", "wandb", environ={"WANDB_MODE": "disabled"})
    assert "WANDB_MODE" not in wanted
    assert notice is None


def test_tensorboard_writes_into_the_run_folder(tmp_path):
    assert variables(tmp_path, "--report-to", "tensorboard")[0] == {"TENSORBOARD_LOGGING_DIR": "runs/x/tensorboard"}
    assert variables(tmp_path, "--report-to", "none")[0] == {}


def test_tracker_not_installed_error(tmp_path):
    recipe = resolve(["--model", "m", "--report-to", "clearml"], tmp_path)
    with pytest.raises(MissingError, match=r"clearml.*pip install clearml"):
        check_packages(recipe)


def test_missing_package_of_modelscope_is_named(tmp_path, monkeypatch):
    recipe = resolve(["--model", "org/m", "--hub", "modelscope"], tmp_path)
    packages.check_packages(recipe)
    monkeypatch.setattr(packages, "MODELSCOPE", ("no_such_package", packages.MODELSCOPE[1]))
    with pytest.raises(MissingError, match=r"--hub modelscope needs the package no_such_package .*dsrun\[modelscope\]"):
        packages.check_packages(recipe)


def test_misspelt_tracker_suggestion(tmp_path):
    recipe = resolve(["--model", "m", "--report-to", "wanbd"], tmp_path)
    with pytest.raises(UsageError, match=r"wanbd.*did you mean wandb"):
        check_packages(recipe)


def test_known_trackers_match_transformers():
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert set(KNOWN) == {*INTEGRATION_TO_CALLBACK, "all"}


def test_mlflow_writes_into_the_run_folder(tmp_path):
    recipe = resolve(["--model", "m", "--report-to", "mlflow"], tmp_path)
    found, _ = environment(recipe, tmp_path / "run", {}, reachable=lambda _: True)
    assert found == {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/run/mlflow.db"}
    own = {"MLFLOW_TRACKING_URI": "http://tracking"}
    assert environment(recipe, tmp_path, own, reachable=lambda _: True)[0] == {}
