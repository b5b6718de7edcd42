"""The resolved recipe as JSON: nothing lost, no secret kept, every change named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.deepspeed_file import with_deepspeed_read
from dsrun.recipe.resolve import resolve
from dsrun.recipe.resolved import (
    differences,
    from_json,
    frozen_argv,
    read_stored,
    recipe_in_force,
    to_json,
    without_secrets,
    worker_recipe,
    write_stored,
)
from dsrun.runs.folder import RunFolder

MODEL = ["--model", "demo-t5"]
JOB = {"SLURM_JOB_ID": "7", "DSRUN_RUN_ID": "first"}
REQUEUED = {"SLURM_JOB_ID": "7", "DSRUN_RUN_ID": "second", "SLURM_RESTART_COUNT": "1"}


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run")


def recipe(tmp_path, *flags):
    return with_deepspeed_read(resolve([*MODEL, *flags], tmp_path), tmp_path)


def test_recipe_survives_json(tmp_path):
    flags = [
        "--lora-targets",
        "q",
        "v",
        "--learning_rate",
        "1e-4",
        "--no-bf16",
        "--token",
        "hf_1",
        "--lora",
        "4",
    ]
    made = recipe(tmp_path, *flags)
    assert from_json(json.loads(json.dumps(to_json(made))), "x") == replace(made, notices=())


def test_run_yaml_sources_survive_json(tmp_path):
    (tmp_path / "run.yaml").write_text("train:\n  model: demo-t5\nzero:\n  stage: 1\n")
    made = resolve(["--config", "run.yaml"], tmp_path)
    again = from_json(to_json(made), "x")
    assert again.where("zero") == made.where("zero") == "run.yaml:4: zero"


@pytest.mark.parametrize("change", [{"version": 99}, {"values": {"no_such_flag": 1}}, {"argv": None}, {"values": 3}])
def test_recipe_of_other_version_rejected(tmp_path, change):
    with pytest.raises(UsageError, match="RECIPE is not a recipe of this version"):
        from_json({**to_json(recipe(tmp_path)), **change}, "RECIPE")


def test_secrets_are_not_in_run_folder(tmp_path, folder):
    made = recipe(tmp_path, "--token", "hf_1", "--hub_token=hf_2")
    write_stored(made, folder, {})
    assert "hf_" not in folder.recipe.read_text()
    assert without_secrets(made).argv == (*MODEL, "--token", "***", "--hub_token=***")
    # The tokens of the command that is given again are used.
    kept, _ = recipe_in_force(replace(made, argv=()), folder, {})
    assert (kept.spec.token, kept.hf["hub_token"]) == ("hf_1", "hf_2")


def test_other_secrets_are_masked_and_come_back(tmp_path, folder):
    """In DeepSpeed's JSON, at any depth, and in addresses."""
    (tmp_path / "ds.json").write_text('{"comet": {"api_key": "sesame"}, "x": [{"y": {"password": "sesame"}}]}')
    files = ["https://me:sesame@example.org/a", "https://example.org/a?sig=sesame"]
    made = recipe(tmp_path, "--deepspeed", "ds.json", "--train-file", files[0], "--validation-file", files[1])
    write_stored(made, folder, JOB)
    assert "sesame" not in folder.recipe.read_text()
    kept, notice = recipe_in_force(made, folder, REQUEUED)
    assert (kept.spec, kept.hf, notice) == (made.spec, made.hf, None)


def test_requeued_job_uses_tokens_of_its_command(tmp_path, folder):
    write_stored(recipe(tmp_path, "--token", "hf_1", "--hub_token", "hf_2"), folder, JOB)
    kept, notice = recipe_in_force(recipe(tmp_path, "--token", "hf_3", "--hub_token", "hf_4"), folder, REQUEUED)
    assert (kept.spec.token, kept.hf["hub_token"], notice) == ("hf_3", "hf_4", None)


def test_key_of_tracker_in_deepspeed_json_is_not_stored(tmp_path, folder):
    """DeepSpeed's comet block has an api_key; a requeued job takes that of the file."""

    def made(key, stage):
        text = json.dumps({"zero_optimization": {"stage": stage}, "comet": {"api_key": key}})
        (tmp_path / "ds.json").write_text(text)
        return recipe(tmp_path, "--deepspeed", "ds.json")

    write_stored(made("sesame-1", 2), folder, JOB)
    assert "sesame" not in folder.recipe.read_text()
    assert recipe_in_force(made("sesame-1", 2), folder, {})[1] is None
    kept, notice = recipe_in_force(made("sesame-2", 3), folder, REQUEUED)
    used = {name: kept.hf["deepspeed"][name] for name in ("zero_optimization", "comet")}
    assert used == {"zero_optimization": {"stage": 2}, "comet": {"api_key": "sesame-2"}}
    assert "sesame" not in notice
    assert "stage: 2 -> 3" in notice


def test_requeued_job_keeps_its_settings(tmp_path, folder):
    write_stored(recipe(tmp_path, "--zero", "1", "--learning_rate", "0.1"), folder, JOB)
    asked = recipe(tmp_path, "--zero", "2", "--learning_rate", "0.2")
    kept, notice = recipe_in_force(asked, folder, REQUEUED)
    assert (kept.spec.zero, kept.hf["learning_rate"]) == ("1", 0.1)
    assert notice == (
        "the run keeps the settings it started with; changed since: --zero: 1 -> 2 (command line); "
        "--learning_rate: 0.1 -> 0.2 (command line)"
    )


@pytest.mark.parametrize(
    "environ",
    [
        {"DSRUN_RUN_ID": "first", "DSRUN_ATTEMPT": "1"},
        {"DSRUN_RUN_ID": "first", "TORCHELASTIC_RESTART_COUNT": "1"},
    ],
)
def test_restarted_rank_keeps_its_settings(tmp_path, folder, environ):
    write_stored(recipe(tmp_path, "--max_steps", "5"), folder, {"DSRUN_RUN_ID": "first"})
    kept, _ = recipe_in_force(recipe(tmp_path, "--max_steps", "6"), folder, environ)
    assert kept.hf["max_steps"] == 5


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "1"}, {"SLURM_JOB_ID": "7"}])
def test_new_start_takes_new_settings_and_names_them(tmp_path, folder, environ):
    write_stored(recipe(tmp_path, "--max_steps", "5"), folder, JOB)
    asked = recipe(tmp_path, "--max_steps", "6", "--resume", "auto", "--force")
    used, notice = recipe_in_force(asked, folder, environ)
    assert used is asked
    assert notice == f"settings changed since the last start in {folder.path}: --max_steps: 5 -> 6 (command line)"


def test_no_notice_without_change_or_for_another_run(tmp_path, folder):
    assert recipe_in_force(recipe(tmp_path), folder, {})[1] is None  # the first start
    write_stored(recipe(tmp_path, "--max_steps", "5"), folder, JOB)
    assert recipe_in_force(recipe(tmp_path, "--max_steps", "5", "--debug"), folder, {})[1] is None
    assert recipe_in_force(recipe(tmp_path, "--resume", "never"), folder, {})[1] is None


def test_differences_of_unset_values_and_lists(tmp_path):
    before, now = recipe(tmp_path, "--lora", "4", "--lora-targets", "q", "v"), recipe(tmp_path, "--bf16")
    assert differences(before, now) == [
        "--lora: 4 -> not set (default)",
        "--lora-targets: q v -> not set (default)",
        "--bf16: false -> true (command line)",
    ]


def test_edited_deepspeed_file_is_named_by_its_keys(tmp_path, folder):
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}')
    write_stored(recipe(tmp_path, "--deepspeed", "ds.json"), folder, JOB)
    file.write_text('{"zero_optimization": {"stage": 1, "overlap_comm": true}, "gradient_clipping": 1.0}')
    kept, notice = recipe_in_force(recipe(tmp_path, "--deepspeed", "ds.json"), folder, REQUEUED)
    assert kept.hf["deepspeed"]["zero_optimization"] == {"stage": 2}
    assert notice.endswith(
        "--deepspeed zero_optimization.stage: 2 -> 1 (command line); "
        "--deepspeed zero_optimization.overlap_comm: not set -> true (command line)"
    )


@pytest.mark.parametrize(
    "content", ["", "{", '{"version": 1}', "[]", '{"version": 1, "values": {"gone": 1}}', "[" * 100_000]
)
def test_unreadable_stored_recipe_is_ignored(tmp_path, folder, content):
    folder.recipe.write_text(content)
    assert read_stored(folder) is None
    asked = recipe(tmp_path)
    assert recipe_in_force(asked, folder, REQUEUED) == (asked, None)


def test_rank_reads_recipe_of_supervisor(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = recipe(tmp_path, "--max_steps", "5")
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(to_json(made)))
    assert worker_recipe([], {"DSRUN_RECIPE": str(file)}) == made
    # Its own flags count where it was started with any.
    assert worker_recipe([*MODEL, "--max_steps", "6"], {"DSRUN_RECIPE": str(file)}).hf["max_steps"] == 6


def test_frozen_argv_resolves_to_same_recipe(tmp_path):
    """Flags made of a recipe give it again, without its run.yaml and without access tokens."""
    (tmp_path / "run.yaml").write_text(
        "train: {model: m, dataset: wmt16, label_smoothing_factor: 0.1, bf16: true, eval_steps: 50, seed: 7,"
        " resume: never, train_file: a b.jsonl, gradient_checkpointing: false, token: hf_1}\n"
    )
    made = resolve(["--config", "run.yaml", "--learning_rate", "1e-4", "--debug", "underflow_overflow"], tmp_path)
    words = frozen_argv(made)
    assert not [word for word in words if "run.yaml" in word or "hf_1" in word]
    again = resolve(words, tmp_path / "elsewhere")
    names = [name for name in made.sources if made.given(name) and name not in ("config", "token")]
    assert {name: again.value(name) for name in names} == {name: made.value(name) for name in names}
