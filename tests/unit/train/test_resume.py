from __future__ import annotations

import json
from datetime import datetime

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import write_manifest
from dsrun.train.checkpoint.resume import find_checkpoint, set_earlier_run_aside

NOW = datetime(2026, 11, 21, 4, 48)


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run")


OWN = ["us", "job 8"]
FACTS = {
    "model_type": "t5",
    "config": {"d_model": 32, "dropout_rate": 0.1},
    "config_sha256": "c0",
    "versions": {"transformers": "5.23.0"},
    "tokenizer_sha256": "t0",
    "global_batch": 64,
    "seed": 42,
    "train_rows": 90,
}


def checkpoint(run, step, *, complete=True, **other):
    folder = run.checkpoint(step)
    (folder / f"global_step{step}").mkdir(parents=True)
    (folder / f"global_step{step}" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(bytes(1000))
    (folder / "model.safetensors").write_bytes(bytes(500))
    (folder / "latest").write_text(f"global_step{step}")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (folder / "config.json").write_text(json.dumps({"model_type": other.get("model_type", "t5")}))
    if complete:
        write_manifest(folder, {"step": step, **FACTS, **other})
    return folder


def find(run, resume="auto", said=None, *, facts=FACTS, trust=False, force=False, again=()):
    notify = (said if said is not None else []).append
    spec = TrainSpec(resume=resume, trust=trust, force=force)
    return find_checkpoint(spec, run, facts=facts, notify=notify, again=again)


def test_resume_in_fresh_folder_starts_at_step_0(run):
    assert find(run) is None


def test_resume_from_newest_complete_checkpoint(run):
    """The newest complete checkpoint wins; incomplete ones are named and moved aside."""
    checkpoint(run, 5)
    newest = checkpoint(run, 10)
    checkpoint(run, 15, complete=False)
    said = []
    assert find(run, said=said) == newest
    assert said == [
        "checkpoint-15 passed over: it has no manifest: its save never finished, or dsrun did not write it",
        "checkpoint-15 moved to set-aside/checkpoint-15",
        f"resuming from {newest}",
    ]
    assert [step for step, _ in run.checkpoints()] == [10, 5]
    assert (run.path / "set-aside" / "checkpoint-15" / "latest").exists()


@pytest.mark.parametrize("by_name", [False, True])
def test_resume_from_weights_alone_rejected(run, by_name):
    """Without ZeRO the stock Trainer would, with a new optimizer, and say nothing."""
    folder = run.checkpoint(5)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(500))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 5}))
    write_manifest(folder, {"step": 5, **FACTS})
    with pytest.raises(UsageError, match=f"without optimizer states.*--model {folder}"):
        find(run, str(folder) if by_name else "auto")
    assert folder.is_dir()
    (folder / "rng_state.pth").touch()
    write_manifest(folder, {"step": 5, **FACTS})
    assert find(run) == folder


def truncate(file):
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * 3 // 4])


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 16
    file.write_bytes(data)


def delete(file):
    file.unlink()


def empty(file):
    file.write_bytes(b"")


FILES = [
    "model.safetensors",
    "global_step{}/zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "latest",
    "trainer_state.json",
    "config.json",
    "manifest.json",
]


@pytest.mark.parametrize("damage", [truncate, flip, delete, empty])
@pytest.mark.parametrize("name", FILES)
def test_resume_falls_back_from_damaged_checkpoints(name, damage, run):
    """Damage of any kind to the newest two falls back to the third."""
    whole = checkpoint(run, 5)
    for step in (10, 15):
        damage(checkpoint(run, step) / name.format(step))
    said = []
    assert find(run, said=said) == whole
    passed = [words for words in said if "passed over" in words]
    assert [words.split()[0] for words in passed] == ["checkpoint-15", "checkpoint-10"]
    kind = "manifest" if name == "manifest.json" else name.partition("/")[0].format(15)
    assert kind in passed[0]


def test_resume_starts_anew_without_intact_checkpoint(run):
    """The damaged ones have all their files in the right sizes: rotation would keep them in place of the new ones."""
    for step in (5, 10):
        flip(checkpoint(run, step) / "latest")
    said = []
    assert find(run, said=said) is None
    assert said[2:] == [
        "no checkpoint of this run is whole: starting at step 0",
        "checkpoint-5 moved to set-aside/checkpoint-5",
        "checkpoint-10 moved to set-aside/checkpoint-10",
    ]
    assert run.checkpoints() == []


def test_resume_never_ignores_checkpoints(run):
    checkpoint(run, 5)
    assert find(run, "never") is None


def test_resume_never_removes_converted_checkpoint(run):
    """What was converted goes when nobody is going to load it."""
    checkpoint(run, 5)
    converted = run.path / ".universal" / "checkpoint-5"
    converted.mkdir(parents=True)
    find(run)
    assert converted.exists()
    find(run, "never")
    assert not converted.parent.exists()


def test_resume_path_must_be_complete_checkpoint(run):
    older, torn = checkpoint(run, 5), checkpoint(run, 10)
    (torn / "trainer_state.json").write_text("cut")
    with pytest.raises(UsageError, match=r"the checkpoint is damaged: trainer_state\.json"):
        find(run, str(torn))
    assert find(run, str(older)) == older
    with pytest.raises(UsageError, match=r"contains no trainer_state.json.*--resume .*/checkpoint-5"):
        find(run, str(run.path))


def test_resume_path_sets_later_checkpoints_aside(run):
    """Else the next `auto` would take checkpoint-15, which this run never reached."""
    for step in (5, 10, 15):
        checkpoint(run, step)
    assert find(run, str(run.checkpoint(5))) == run.checkpoint(5)
    assert [step for step, _ in run.checkpoints()] == [5]
    assert find(run) == run.checkpoint(5)


def test_restart_resumes_given_path_until_own_checkpoint(run, tmp_path):
    """Else a run that dies before its first save would begin at step 0, or with what lay in its folder before."""
    given = checkpoint(RunFolder(tmp_path / "other"), 10)
    checkpoint(run, 5, signed=OWN)
    assert find(run, str(given), again=OWN) == given
    damaged, own = (checkpoint(run, step, signed=OWN) for step in (20, 15))
    flip(damaged / "latest")
    assert find(run, str(given), again=OWN) == own
    flip(own / "latest")
    assert find(run, str(given), again=OWN) == given


def test_restart_ignores_checkpoints_of_other_runs(run):
    """The first attempt died before it could set aside what lay beyond the checkpoint that it was to start from."""
    given, *_ = (checkpoint(run, step, signed=["somebody", "job 7"]) for step in (5, 10, 15))
    checkpoint(run, 20)  # of a dsrun that signed nothing yet
    assert find(run, str(given), again=OWN) == given
    assert [step for step, _ in run.checkpoints()] == [5]


def test_run_folder_reusable_after_early_death(run):
    """The folder of a run that was started anew and died at once is still its own."""
    checkpoint(run, 5)
    run.run_json.write_text("{}")
    set_earlier_run_aside(run, NOW, discard=False)
    (run.path / "set-aside").mkdir()
    (run.path / ".universal").mkdir()
    assert not run.run_json.exists()
    RunFolder.create(run.path)


def test_resume_from_foreign_checkpoint(run, tmp_path):
    """A checkpoint that dsrun did not write is accepted with a notice."""
    foreign = checkpoint(RunFolder(tmp_path / "other"), 5, complete=False)
    said = []
    assert find(run, str(foreign), said=said) == foreign
    assert "cannot be verified" in said[0]
    (foreign / "latest").write_text("global_step7")
    with pytest.raises(UsageError, match="`latest` names 'global_step7'"):
        find(run, str(foreign))
    for name in ("config.json", "trainer_state.json"):
        (foreign / name).write_text('{"global_')
        with pytest.raises(UsageError, match=rf"{name} is damaged"):
            find(run, str(foreign))


def test_resume_with_other_world_size_or_zero_stage(run):
    """Another world size or stage is no reason to refuse."""
    folder = checkpoint(run, 5, world_size=4, zero_stage=3)
    assert find(run) == folder


def test_resume_of_other_model_type_rejected(run):
    """Another kind of model is refused also with --force."""
    checkpoint(run, 5, model_type="llama")
    with pytest.raises(UsageError, match="contains a llama model, and this run trains a t5 model"):
        find(run, force=True)


def test_resume_with_changed_model_config_rejected(run):
    """A changed config is refused with what changed, unless forced."""
    folder = checkpoint(run, 5, config={"d_model": 32, "dropout_rate": 0.0}, config_sha256="c1")
    with pytest.raises(UsageError, match=r"another model config \(dropout_rate was 0.0, is 0.1\).*--force"):
        find(run)
    said = []
    assert find(run, said=said, force=True) == folder
    assert "another model config" in said[0]


def test_resume_ignores_config_keys_of_other_release(run):
    """Keys that only another release of Transformers writes are no change."""
    earlier = {"transformers": "5.20.0"}
    config = {"d_model": 32, "gone_since": 1}  # and no dropout_rate yet
    folder = checkpoint(run, 5, config=config, config_sha256="c1", versions=earlier)
    assert find(run) == folder
    checkpoint(run, 6, config=config | {"d_model": 64}, config_sha256="c2", versions=earlier)
    with pytest.raises(UsageError, match=r"another model config \(d_model was 64, is 32\)"):
        find(run)


def test_resume_from_manifest_without_config_rejected(run):
    """A manifest that does not say which config is refused in one line."""
    folder = checkpoint(run, 5, config_sha256="c1", versions={"transformers": "5.20.0"})
    facts = {name: value for name, value in FACTS.items() if name != "config"}
    write_manifest(folder, {"step": 5, **facts, "config_sha256": "c1", "versions": {}})
    with pytest.raises(UsageError, match="another model config"):
        find(run)


def test_resume_with_changed_tokenizer_rejected(run):
    checkpoint(run, 5, tokenizer_sha256="t1")
    with pytest.raises(UsageError, match="was saved with another tokenizer"):
        find(run)


def test_resume_with_other_lora_rejected(run):
    """Another rank does not fit, and under another alpha the same adapters compute something else."""
    folder = checkpoint(run, 5, lora="rank 4, alpha 8, on every linear layer")
    assert find(run) == folder  # FACTS do not say
    with pytest.raises(UsageError, match=r"another LoRA \(was: rank 4, alpha 8, on every linear layer; is: none\)"):
        find(run, facts=FACTS | {"lora": "none"})
    assert find(run, facts=FACTS | {"lora": "none"}, force=True) == folder


def test_resume_with_other_groups_of_learning_rates_rejected(run):
    """Also with --force, and from a checkpoint of before there were any: optimizer states are kept by group."""
    folder = checkpoint(run, 5)
    assert find(run, facts=FACTS | {"learning_rates": "one"}) == folder
    layered = FACTS | {"learning_rates": "0.9 per layer"}
    with pytest.raises(UsageError, match=r"groups of learning rates \(was: one; is: 0.9 per layer\).*--resume never"):
        find(run, facts=layered, force=True)
    folder = checkpoint(run, 6, learning_rates="0.9 per layer")
    assert find(run, facts=layered) == folder


def test_resume_reports_changed_global_batch_and_data(run):
    folder = checkpoint(run, 5, global_batch=32, train_rows=100)
    said = []
    assert find(run, said=said) == folder
    assert said[:2] == [
        "the global batch size was 32 when checkpoint-5 was saved, and is 64 now (--global-batch-size 32 keeps it)",
        "the number of training rows was 100 when checkpoint-5 was saved, and is 90 now",
    ]


def test_resume_reports_another_loss_or_teacher(run):
    folder = checkpoint(run, 5, objective="distill (forward, from a/b)")
    said = []
    assert find(run, said=said, facts=FACTS | {"objective": "distill (forward, from c/d)"}) == folder
    assert "from a/b" in said[0]
    assert "from c/d" in said[0]


def test_resume_with_other_training_data_rejected(run):
    """The same number of rows, but others: samples would be repeated or left out in silence."""
    folder = checkpoint(run, 5, train_fingerprint="rows a")
    assert find(run) == folder  # FACTS do not say
    facts = FACTS | {"train_fingerprint": "rows b"}
    with pytest.raises(UsageError, match="was saved with other training data"):
        find(run, facts=facts)
    said = []
    assert find(run, said=said, facts=facts, force=True) == folder
    assert said[:2] == [
        "resuming with other training data than checkpoint-5 was saved with",
        "training goes on at the same position in the new data: in this epoch samples may be repeated or left out",
    ]


@pytest.mark.parametrize("name", ["checkpoint-7", "checkpoint-3", "copy"])
def test_resume_from_renamed_checkpoint(run, name):
    """One that was chosen was moved out of its own way, and then not found."""
    checkpoint(run, 2)
    renamed = checkpoint(run, 5).rename(run.path / name)
    later = checkpoint(run, 9, complete=False)
    resume = str(renamed) if name == "copy" else "auto"
    with pytest.raises(UsageError, match=rf"{name} is the checkpoint of step 5 .*rename it to checkpoint-5"):
        find(run, resume)
    assert renamed.is_dir()
    assert later.is_dir()
    assert find(run, str(renamed.rename(run.path.parent / name))) == run.path.parent / name


def test_resume_from_untrusted_checkpoint_rejected(run):
    """An untrusted checkpoint is refused before it is read."""
    folder = checkpoint(run, 5)
    (folder / "latest").chmod(0o666)
    with pytest.raises(UsageError, match=r"everybody may write to latest.*--trust"):
        find(run)
    assert find(run, trust=True) == folder


def test_resume_removes_unfinished_save(run):
    checkpoint(run, 5)
    leftover = run.path / ".saving" / "checkpoint-10"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    said = []
    assert find(run, said=said) == run.checkpoint(5)
    assert said[0] == "removed what was written of checkpoint-10 when its run died"
    assert not (run.path / ".saving").exists()


@pytest.mark.parametrize("discard", [False, True])
def test_fresh_start_keeps_or_discards_earlier_results(run, discard):
    checkpoint(run, 5)
    hidden = checkpoint(RunFolder(run.path / ".saving"), 10)
    run.metrics.write_text("{}\n")
    (run.path / "samples-rank-0.jsonl").touch()
    (run.logs / "rank-0.attempt-0.log").write_text("words")
    aside = set_earlier_run_aside(run, NOW, discard=discard)
    assert not run.checkpoint(5).exists()
    assert not run.metrics.exists()
    assert not hidden.exists()
    assert not (run.path / "samples-rank-0.jsonl").exists()
    assert (run.logs / "rank-0.attempt-0.log").exists()
    if discard:
        assert aside is None
    else:
        assert (aside / "checkpoint-5" / "manifest.json").exists()
        assert (aside / "metrics.jsonl").exists()
    assert find(run) is None


def test_fresh_start_with_nothing_to_set_aside(run):
    assert set_earlier_run_aside(run, NOW, discard=False) is None
    assert not list(run.path.glob("earlier-*"))
