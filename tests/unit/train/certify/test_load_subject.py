"""What certify makes of a model that it is given: own code, other tasks, damaged configs and short vocabularies."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from dsrun.certify.request import CertifyRequest
from dsrun.errors import UsageError
from dsrun.train.certify import certify as program
from dsrun.train.certify.subject import load_subject
from tests.unit.train.certify.subjects import config_of

LLAMA = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4}
OWN = {"auto_map": {"AutoConfig": "own_config.OwnConfig", "AutoModelForCausalLM": "own_model.OwnModel"}}
OWN_CONFIG = """
from transformers import LlamaConfig
class OwnConfig(LlamaConfig):
    model_type = "own"
"""
OWN_MODEL = """
from transformers import LlamaForCausalLM
from .own_config import OwnConfig
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def given(tmp_path):
    """given(kind, …): the subject of a model of this type."""
    (tmp_path / "scratch").mkdir()

    def make(kind="llama", *, task=None, trusted=False, **values):
        folder = tmp_path / "model"
        folder.mkdir()
        stock = "llama" if kind in ("own", "unknown") else kind
        config = config_of(stock, **LLAMA if stock == "llama" else {}).to_dict() | {"model_type": kind} | values
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "own_config.py").write_text(OWN_CONFIG)
        (folder / "own_model.py").write_text(OWN_MODEL)
        return CertifyRequest(model=str(folder), task=task, trust_remote_code=trusted, only=("tied",))

    return make


def test_own_code_runs_where_it_is_trusted(given, tmp_path):
    """The small model has it, too."""
    request = given("own", trusted=True, **OWN)
    assert [row["status"] for row in program.certify(request, tmp_path / "scratch", notify=str)["checks"]] == ["pass"]
    assert (tmp_path / "scratch" / "small" / "own_model.py").is_file()


@pytest.mark.parametrize(
    ("kind", "values"),
    [("own", OWN), ("unknown", {}), ("llama", {"num_hidden_layers": "3"}), ("llama", {"num_attention_heads": 7})],
)
def test_config_that_makes_no_model_is_refused(given, tmp_path, kind, values):
    with pytest.raises(UsageError):
        load_subject(given(kind, **values), tmp_path / "scratch")


@pytest.mark.parametrize(("kind", "task"), [("t5", "causal"), ("t5", "dpo"), ("llama", "seq2seq")])
def test_task_that_a_model_is_not_made_for_is_refused(given, tmp_path, kind, task):
    with pytest.raises(UsageError):
        load_subject(given(kind, task=task), tmp_path / "scratch")


@pytest.mark.parametrize(("kind", "task", "known"), [("llama", "causal", "causal-lm"), ("llama", "dpo", "dpo")])
def test_task_that_was_asked_for(given, tmp_path, kind, task, known):
    assert load_subject(given(kind, task=task), tmp_path / "scratch").task == known


def test_short_vocabulary_is_that_of_the_words(given, tmp_path):
    """Rows and special tokens are in it: nothing has to grow the embedding."""
    subject = load_subject(given(vocab_size=85, eos_token_id=84, pad_token_id=7, bos_token_id=9), tmp_path / "scratch")
    config = json.loads((subject.small / "config.json").read_text())
    assert config["vocab_size"] == len(AutoTokenizer.from_pretrained(subject.words)) == 85
    assert max(config["eos_token_id"], config["pad_token_id"], config["bos_token_id"]) < 85
    tokenizer = AutoTokenizer.from_pretrained(subject.words)
    for row in map(json.loads, subject.rows["train"].read_text().splitlines()):
        assert tokenizer.unk_token_id not in tokenizer(row["source"])["input_ids"]
