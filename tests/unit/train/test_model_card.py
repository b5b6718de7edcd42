"""The card of a final model: what the Hub reads of it, what people read, and what must not stand in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub import ModelCard
from transformers import LlamaConfig, PreTrainedTokenizerFast, T5Config

from dsrun.recipe.batch import BatchPlan
from dsrun.recipe.recipe import phases
from dsrun.recipe.resolve import resolve
from dsrun.runs.folder import RunFolder
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.base.plan import Given, TrainingPlan
from dsrun.train.card.write_card import CardFacts, is_edited, model_card, write_cards
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.data.counts import RowCounts
from dsrun.train.data.data_request import PreparedData

SECRET = "hf_canaryCANARY0123456789"
BATCH = BatchPlan(global_batch=64, micro_batch=4, world_size=8, accumulation=2)
METRICS = {"validation": {"loss": 1.23456, "bleu": 31.0, "rouge1": float("nan"), "seconds": 3.0, "epoch": 1.0}}


@pytest.fixture
def facts(tmp_path):
    """facts(flag, …) of a run with these flags, on data of this machine."""

    def call(*flags: str, task="seq2seq", title=None, **changes) -> CardFacts:
        files = ["--train-file", str(tmp_path / "secret" / "train.jsonl"), "--validation-file", "./dev.jsonl"]
        data = [] if {"--dataset", "--mix"} & set(flags) else files
        recipe = resolve(["--model", "org/base", *data, *flags, f"--hub-token={SECRET}"], tmp_path)
        config = T5Config() if task == "seq2seq" else LlamaConfig()
        plan = TrainingPlan(
            recipe, title or recipe.spec.model, DistributedWorld(0, 8, 0, 8, "cuda"), config, task, BATCH, "bf16",
            {"zero_optimization": {"stage": 2}}, phases(recipe),
        )  # fmt: skip
        prepared = PreparedData(
            train=None, validation=None, test=None, notices=(),
            counts={"train": RowCounts(rows=53, cut=3, cut_source=3, limits=((512, "--max-length"),))},
            origin="train.jsonl: 53 train, 11 validation", collator=PaddingCollator(0, task == "seq2seq"),
        )  # fmt: skip
        state = SimpleNamespace(global_step=40, max_steps=50, epoch=1.5)
        known = {
            "plan": plan, "data": prepared, "state": state, "metrics": METRICS,
            "tokenizer": SimpleNamespace(chat_template=None), "parameters": 1000, "trainable": 1000,
            "best": None, "name": "en-ro", "repository": None,
        }  # fmt: skip
        return CardFacts(**{**known, **changes})

    return call


def front(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


def test_card_front_matter_as_the_hub_reads_it(facts):
    flags = ("--source-lang", "en_XX", "--target-lang", "ro_RO", "--dataset", "wmt16", "--dataset-config", "ro-en")
    card = ModelCard(model_card(facts(*flags), adapter=False))
    assert card.data.base_model == "org/base"
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "translation")
    assert (card.data.language, card.data.datasets) == (["en", "ro"], ["wmt16"])
    assert card.data.metrics == ["bleu"]
    assert {each.metric_type: each.metric_value for each in card.data.eval_results} == {"loss": 1.2346, "bleu": 31.0}
    assert {(each.dataset_type, each.dataset_config) for each in card.data.eval_results} == {("wmt16", "ro-en")}
    assert card.data.license is None


def test_card_without_results_or_languages(facts):
    found = front(model_card(facts("--source-lang", "English", metrics={}), adapter=False))
    assert found.keys() == {"base_model", "library_name", "pipeline_tag", "tags"}


def test_card_says_what_the_run_was(facts):
    text = model_card(facts("--global-batch-size", "64", "--learning-rate", "1e-4"), adapter=False)
    for part in (
        "Trained on `train.jsonl` with dsrun from [org/base](https://huggingface.co/org/base).",
        "| validation | 1.2346 | 31 |", "64 = 4 × 8 GPUs × 2 steps", "ZeRO-2 on 8 GPUs, bf16",
        "3 of 53 examples were cut at 512 tokens", "rows: 53 train, 11 validation",
        "40 steps of 50, stopped early", "learning_rate: 0.0001",
    ):  # fmt: skip
        assert part in text


def test_card_without_tokens_and_folders_of_this_machine(facts, tmp_path):
    (tmp_path / "my-model").mkdir()
    folder = str(tmp_path / "my-model")
    found = facts(
        "--model", folder, "--tokenizer", folder, "--cache-dir", str(tmp_path), "--token", SECRET,
        "--generation-config", folder, "--source-prefix", f"key {SECRET}: ", "--output", str(tmp_path / "run"),
        title=folder,
    )  # fmt: skip
    text = model_card(found, adapter=False)
    assert SECRET not in text
    assert str(tmp_path) not in text
    assert "from the model in `my-model`" in text
    assert "base_model" not in front(text)


def test_card_takes_the_licence_of_a_local_base_model(facts, tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / "README.md").write_text("---\nlicense: other\nlicense_name: my-own\n---\nText\n")
    found = front(model_card(facts("--model", str(base), title=str(base)), adapter=False))
    assert (found["license"], found["license_name"]) == ("other", "my-own")
    (base / "README.md").write_text("---\n[\n---\n")
    assert "license" not in front(model_card(facts("--model", str(base), title=str(base)), adapter=False))


def test_card_of_a_script_with_a_model_and_rows_of_its_own(facts):
    found = facts()
    spec = replace(found.spec, model=None, model_type="t5", train_file=[], validation_file=[])
    sources = {name: each for name, each in found.plan.recipe.sources.items() if name != "model"}
    plan = replace(found.plan, recipe=replace(found.plan.recipe, spec=spec, sources=sources), title="t5")
    plan = replace(plan, given=Given(config=plan.config, model=lambda: None))
    data = replace(found.data, origin="given rows: 53 train")
    text = model_card(replace(found, plan=plan, data=data), adapter=False)
    assert "Trained on `given rows` with dsrun from the t5 model of a script." in text
    assert "model: t5" not in text


def test_card_of_a_mixture(facts, tmp_path):
    """Each set has its data, its results and its languages."""
    (tmp_path / "mix.yaml").write_text(
        "sets:\n  wiki: {train_file: /data/wiki.jsonl, validation_file: /data/dev.jsonl}\n"
        "  wiki_ro: {dataset: org/ro, source_lang: en, target_lang: ro}\n"
    )
    metrics = {"validation": {"loss": 1.0, "wiki_loss": 2.0, "wiki_ro_loss": 3.0, "wiki_ro_bleu": 4.0}}
    found = facts("--mix", str(tmp_path / "mix.yaml"), metrics=metrics)
    text = model_card(found, adapter=False)
    card = ModelCard(text)
    assert (card.data.language, card.data.datasets) == (["en", "ro"], ["org/ro"])
    results = {(each.dataset_name, each.metric_type): each.metric_value for each in card.data.eval_results}
    assert results == {
        ("wiki, wiki_ro", "loss"): 1.0, ("wiki", "loss"): 2.0, ("wiki_ro", "loss"): 3.0, ("wiki_ro", "bleu"): 4.0,
    }  # fmt: skip
    assert "- wiki, train: `wiki.jsonl`" in text
    assert "| validation wiki_ro | 3 | 4 |" in text
    assert "/data/" not in text


@pytest.mark.parametrize("adapter", [True, False])
def test_card_of_a_lora_run(facts, adapter):
    text = model_card(facts("--lora", "8", task="causal-lm"), adapter=adapter)
    found = front(text)
    assert found["library_name"] == ("peft" if adapter else "transformers")
    assert "lora" in found["tags"]
    assert ("AutoPeftModelForCausalLM" in text) is adapter
    assert ("without the base model" if adapter else "merged into the weights") in text


def test_card_snippet_of_chats_languages_and_the_hub(facts):
    chat = SimpleNamespace(chat_template="{{ messages }}")
    text = model_card(facts(task="causal-lm", tokenizer=chat, repository="org/mine"), adapter=False)
    assert "apply_chat_template" in text
    assert 'from_pretrained("org/mine")' in text
    nllb = SimpleNamespace(chat_template=None, src_lang="eng_Latn")
    text = model_card(facts("--source-lang", "eng_Latn", "--source-prefix", 'a "b": ', tokenizer=nllb), adapter=False)
    assert 'src_lang="eng_Latn"' in text
    code = text.split("```python\n")[1].split("```")[0]
    compile(code, "snippet", "exec")


def test_card_that_was_edited_is_kept(facts, tmp_path):
    run = RunFolder(tmp_path / "run")
    run.model.mkdir(parents=True)
    file = run.model / "README.md"
    assert not is_edited(file)
    write_cards(run, facts(), notify=pytest.fail)
    first = file.read_text()
    write_cards(run, facts(name="other"), notify=pytest.fail)
    assert file.read_text() != first
    edited = file.read_text() + "It is good at greetings.\n"
    for text in (edited, "My own words.\n"):
        file.write_text(text)
        assert is_edited(file)
        write_cards(run, facts(), notify=pytest.fail)
        assert file.read_text() == text


def test_card_that_cannot_be_written_ends_no_run(facts, tmp_path):
    run = RunFolder(tmp_path / "run")
    run.model.mkdir(parents=True)
    (run.model / "README.md").mkdir()
    notices: list[str] = []
    write_cards(run, facts(), notify=notices.append)
    assert len(notices) == 1
    assert "README.md could not be written" in notices[0]
    notices.clear()
    (run.model / "README.md").rmdir()
    write_cards(run, replace(facts(), state=None), notify=notices.append)
    assert "README.md could not be written: TypeError" in notices[0]


def test_language_attribute_of_tokenizers():
    """The snippet looks at it; a tokenizer without languages has none."""
    from transformers import NllbTokenizer

    assert not hasattr(PreTrainedTokenizerFast, "src_lang")
    assert hasattr(NllbTokenizer, "src_lang")


def test_edited_card_stays_when_the_model_is_saved_again(tmp_path):
    from dsrun.train.export import final

    partial, folder = tmp_path / "model.partial", tmp_path / "model"
    for each in (partial, folder):
        each.mkdir()
    (folder / "README.md").write_text("My own words.\n")
    (partial / "weights").touch()
    final._replace(partial, folder)
    assert (folder / "README.md").read_text() == "My own words.\n"
    assert [path.name for path in Path(folder).glob("w*")] == ["weights"]
