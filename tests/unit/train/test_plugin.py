"""A plugin is loaded, checked, and what it does wrong is one line with the user's file and line."""

from __future__ import annotations

import itertools
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig, T5Config, TrainerCallback

from dsrun.errors import MissingError, UsageError
from dsrun.plugin import Example
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.runs.heartbeat import HeartbeatWriter
from dsrun.train.base.plan import load_plugin
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.loop.evaluation import Evaluator
from dsrun.train.loss.model_loss import ModelLoss, PluginLoss
from dsrun.train.loss.probe import check_sum

ROOT = Path(__file__).parents[3]
HEAD = "from dsrun.plugin import Plugin\n"
numbers = itertools.count()


@pytest.fixture
def load(tmp_path, monkeypatch):
    """load(body, spec…) is the plugin of a class with this body; load(module=text) of a whole module with `Mine`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(body="", *, module=None, **spec):
        # Python keeps modules by their name.
        name = f"plugin_of_test_{next(numbers)}"
        text = f"{HEAD}class Mine(Plugin):\n    api_version = 1\n{body}" if module is None else module
        (tmp_path / f"{name}.py").write_text(text)
        return load_plugin(TrainSpec(plugin=f"{name}:Mine", **spec))

    return call


def method(text):
    return "".join(f"    {line}\n" for line in dedent(text).strip().splitlines())


def test_importing_the_protocol_loads_no_torch():
    code = "import sys, dsrun.plugin; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_empty_plugin_changes_nothing(load):
    plugin = load()
    assert not any(map(plugin.has, ("rows", "collate", "loss", "metrics", "callbacks")))
    assert plugin.rows({"text": "x"}, "train", "file") == [{"text": "x"}]
    assert load_plugin(TrainSpec()) is None


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("import nonsuch_package\nclass Mine: pass", r"importing it failed at plugin\S+:1: ModuleNotFoundError"),
        ("class Mine: pass\n1 / 0", r"importing it failed at plugin\S+:2: ZeroDivisionError: division by zero"),
        ("class Mine: pass", r"Mine in plugin_of_test_\d+\.py is not a dsrun\.plugin\.Plugin"),
        (f"{HEAD}Mine = Plugin()", "is not a dsrun.plugin.Plugin"),
        (f"{HEAD}class Mine(Plugin): pass", r"does not state its api_version \(api_version = 1 in the class\)"),
        (f"{HEAD}class Mine(Plugin): api_version = 9", r"is written for api_version 9, and this dsrun has 1"),
        (f"{HEAD}class Mine(Plugin):\n api_version = 1\n def __init__(self, x): pass", r"Mine\(\) failed at \S+: Type"),
        (f"{HEAD}class Mine(Plugin):\n api_version = 1\n mean_over = 'rows'", "mean_over is 'rows' .use one of tokens"),
        (f"{HEAD}class Mine(Plugin):\n api_version = 1\n metric_names = ('a',)", "metric_names is"),
        (f"{HEAD}class Mine(Plugin):\n api_version = 1\n def metrics(self, examples): pass", r"metric_names is \(\)"),
    ],
)
def test_what_is_not_a_plugin_is_refused(load, module, words):
    with pytest.raises((UsageError, MissingError), match=words) as raised:
        load(module=module)
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, MissingError) == ("nonsuch" in module)


def test_dpo_and_a_loss_of_the_plugin_exclude_each_other(load):
    body = method("def loss(self, model, inputs, targets): pass")
    load(body)
    with pytest.raises(UsageError, match="and so has --task dpo"):
        load(body, task="dpo")


def test_identity_tells_versions_and_sources_apart(load):
    first, again, other = load(), load(), load('    version = "2"\n')
    assert first.file.sha256 == again.file.sha256 != other.file.sha256
    assert "version 2" in other.identity
    assert set(other.facts) == {"name", "version", "file", "sha256"}


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("'x'", r"rows\(\) at plugin\S+\.py:4 returned a str; it must return a row \(dict\), a list of rows, or None"),
        ("[1]", r"returned a list; it must return a row"),
        ("row['y']", r"rows\(\) failed at plugin\S+\.py:5: KeyError: 'y' \(data, line 3\)"),
    ],
)
def test_wrong_rows_are_one_line(load, returned, words):
    plugin = load(method(f"def rows(self, row, split):\n    return {returned}"))
    with pytest.raises(UsageError, match=words):
        plugin.rows({"x": 1}, "train", "data, line 3")


BATCH = {"input_ids": torch.ones(2, 3, dtype=torch.int64), "labels": torch.ones(2, 3, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("None", "returned nothing; it must return a dict with input_ids, labels"),
        ("{'input_ids': batch['input_ids']}", "returned a dict of input_ids; it must return a dict with"),
        ("batch | {'more': [1]}", "returned a list; it must return a tensor as 'more'"),
        ("batch | {'labels': batch['labels'][:1]}", "a batch of the same 2 rows"),
    ],
)
def test_wrong_batch_is_one_line(load, returned, words):
    plugin = load(method(f"def collate(self, batch, rows):\n    return {returned}"))
    with pytest.raises(UsageError, match=words):
        plugin.collate(BATCH, [{}, {}])


def test_metrics_are_floats_by_the_declared_names(load):
    answers = [Example("s", "p", "r")]
    body = '    metric_names = ("a",)\n    given = {{"a": 1}}\n' + method("def metrics(self, examples):\n    return {}")
    assert load(body.format("{'a': len(examples)}")).metrics(answers) == {"a": 1.0}
    for wrong, words in (("{'b': 1}", "returned a dict of b; it must return a dict of a"), ("{'a': 'x'}", "numbers")):
        with pytest.raises(UsageError, match=words):
            load(body.format(wrong)).metrics(answers)


def test_error_in_a_callback_names_its_line(load):
    plugin = load(
        module="from transformers import TrainerCallback\n"
        + HEAD
        + dedent("""
        class Mine(Plugin):
            api_version = 1
            def callbacks(self):
                return [Noisy()]
        class Noisy(TrainerCallback):
            def on_log(self, *args, **kwargs):
                raise ValueError("no")
        """)
    )
    (callback,) = plugin.callbacks()
    assert isinstance(callback, TrainerCallback)
    callback.on_step_end(None, None, None)
    with pytest.raises(UsageError, match=r"Noisy\.on_log\(\) failed at plugin\S+\.py:10: ValueError: no"):
        callback.on_log(None, None, None)
    with pytest.raises(UsageError, match=r"a str; it must return a list of transformers\.TrainerCallback"):
        load(method("def callbacks(self):\n    return ['x']")).callbacks()


def test_out_of_memory_in_a_plugin_stays_what_it_is(load):
    """So that the supervisor halves the micro batch, as elsewhere."""
    plugin = load(method("def rows(self, row, split):\n    import torch\n    raise torch.OutOfMemoryError(row['x'])"))
    with pytest.raises(torch.OutOfMemoryError):
        plugin.rows({"x": "CUDA out of memory. Tried to allocate 2.00 GiB."}, "train", "file")


LLAMA = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
T5 = T5Config(
    vocab_size=11, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2, decoder_start_token_id=0, dropout_rate=0.0
)
ENTROPY = method("""
def loss(self, model, inputs, targets):
    import torch.nn.functional as F
    logits = model(**inputs)["logits"].flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
""")


@pytest.mark.parametrize("config", [LLAMA, T5], ids=["llama", "t5"])
def test_plugin_loss_of_cross_entropy_equals_dsruns(load, config):
    """Targets stand where their logits are, for causal models too; one of the rows is filler."""
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = auto.from_config(config)
    labels = torch.tensor([[3, 4, -100, 5], [-100] * 4, [-100, 6, 7, 8]])
    inputs = {"input_ids": labels.clamp(min=1), "attention_mask": torch.ones_like(labels), "labels": labels}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)
    ours, theirs = ModelLoss.of(model), PluginLoss(load(ENTROPY), model)
    items = torch.tensor(20)
    assert theirs.items(labels) == ours.items(labels)
    loss, _ = theirs(model, inputs, items)
    torch.testing.assert_close(loss, ours(model, inputs, items)[0])
    assert theirs.metrics(theirs.sums(model, inputs)) == pytest.approx(ours.metrics(ours.sums(model, inputs)), rel=1e-5)
    samples = PluginLoss(load("    mean_over = 'samples'\n" + ENTROPY), model)
    assert samples.items(labels) == 2


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("1.0", "returned a float; it must return the sum"),
        ("model(**inputs)['logits']", r"returned a Tensor of shape \[1, 2, 11\]; it must return the sum"),
        ("inputs['input_ids'].sum() * 1.0", "a sum that depends on what model"),
        ("model(**inputs)['logits'].sum().detach()", "a sum that depends on what model"),
        ("model(**inputs).nonsuch", r"loss\(\) failed at plugin\S+:5: AttributeError"),
    ],
)
def test_wrong_loss_is_one_line(load, returned, words):
    model = AutoModelForCausalLM.from_config(LLAMA)
    loss = PluginLoss(load(method(f"def loss(self, model, inputs, targets):\n    return {returned}")), model)
    ids = torch.tensor([[2, 3]])
    with pytest.raises(UsageError, match=words):
        loss(model, {"input_ids": ids, "labels": ids}, torch.tensor(1))
    assert not model._forward_hooks


def test_focal_loss_of_the_example(monkeypatch):
    """Sure tokens count less; gamma 0 is cross entropy."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))
    from focal_loss import FocalLoss

    logits, targets = torch.tensor([[[4.0, 0.0], [0.0, 0.0], [1.0, 2.0]]]), torch.tensor([[0, 1, -100]])
    entropy = F.cross_entropy(logits[0], targets[0], reduction="none")
    sure = torch.exp(-entropy)
    expected = ((1 - sure) ** 2 * entropy)[:2].sum()
    plugin = FocalLoss()
    torch.testing.assert_close(plugin.loss(lambda **_: {"logits": logits}, {}, targets), expected)
    examples = [Example("", "a b", "c b"), Example("", "", "b"), Example("", "b c", "c b")]
    assert plugin.metrics(examples) == {"last_word": pytest.approx(100 / 3)}


@pytest.mark.parametrize(("reduction", "is_refused"), [("sum", False), ("mean", True)])
def test_loss_that_is_not_a_sum_is_refused(load, reduction, is_refused):
    model = AutoModelForCausalLM.from_config(LLAMA)
    plugin = load(ENTROPY.replace('"sum"', f'"{reduction}"'))
    trainer = SimpleNamespace(
        model=model,
        model_wrapped=model,
        loss_of_model=PluginLoss(plugin, model),
        plugin=plugin,
        compute_loss_context_manager=nullcontext,
        data_collator=PaddingCollator(pad_id=0, seq2seq=False),
        _prepare_inputs=dict,
    )
    with pytest.raises(UsageError, match=r"for two equal rows, so it is not the sum") if is_refused else nullcontext():
        check_sum(trainer)


def test_metrics_of_a_plugin_may_be_silent():
    """They may ask a larger model or a service for longer than a rank may be silent in a phase of dsrun's."""
    heart, seen = HeartbeatWriter(None, 0), []
    heart.enter("generating")

    def metrics(_):
        seen.append(heart.phase)
        return {"a": 1.0}

    trainer = SimpleNamespace(
        plugin=SimpleNamespace(has=lambda _: True, metrics=metrics), context=SimpleNamespace(heart=heart),
        loss_of_model=None, split=SimpleNamespace(rank=0, world_size=1), may_leave_evaluation=False,
    )  # fmt: skip
    assert Evaluator(trainer)._scored([Example("s", "p", "r")])["a"] == 1.0
    assert (seen, heart.phase) == (["running"], "generating")
