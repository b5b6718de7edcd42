"""What certify says of special tokens and of conversations: nothing of right models, and each fault by its code."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dsrun.certify.checks import CHECK_FACTS
from dsrun.train.certify.look import CHECKS, tokens
from dsrun.train.data.encoding.chat import encode_chat
from tests.unit.train.certify.subjects import RIGHT, codes, config_of, subject_of
from tests.unit.train.data.conftest import CHATML, characters
from tests.unit.train.data.encoding.templates import PARTS_ONLY, ends_of, names, tokenizer_for

IDS, CHAT = (check for check in CHECKS if check.code in ("ids", "chat"))
LLAMA = {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": 400}


def ids_of(tokenizer, *ends):
    return tokenizer.convert_tokens_to_ids(list(ends))


@pytest.fixture
def look(tmp_path):
    """look(check, tokenizer, generation=…, **config): the findings for a Llama with this tokenizer."""

    def call(check, tokenizer=None, *, generation=None, config=None, **values):
        config = config or config_of("llama", **LLAMA | values)
        return [*check.look(subject_of(config, tmp_path, tokenizer=tokenizer, generation=generation))]

    return call


def test_checks_are_registered_with_the_fault_that_they_answer():
    assert all(CHECK_FACTS[check.code]["field"] for check in (IDS, CHAT))


@pytest.mark.parametrize("kind", [*RIGHT, "gemma3", "mbart", "m2m_100", "marian", "pegasus"])
def test_ids_of_right_families(look, kind):
    assert codes(look(IDS, config=config_of(kind))) == [("info", "ids")]


@pytest.mark.parametrize(
    ("values", "generation"),
    [
        ({"pad_token_id": 400}, None),
        ({"pad_token_id": -1}, None),
        ({"eos_token_id": [2, 400]}, None),
        ({}, {"eos_token_id": [2, 401]}),
        ({}, {"forced_bos_token_id": 400}),
    ],
)
def test_id_beyond_the_embedding(look, values, generation):
    (finding,) = {(each.code, each.message.values["value"]) for each in look(IDS, generation=generation, **values)}
    assert finding[0] == "ids_outside"
    assert not 0 <= finding[1] < 400


def test_id_of_config_json_is_named_once(look):
    """Where there is no generation_config.json that could be wrong, too."""
    assert [each.where or each.message.values["file"] for each in look(IDS, eos_token_id=400)] == ["config.json"]


@pytest.mark.parametrize("file", ["tokenizer.json", "generation_config.json"])
def test_file_that_cannot_be_read_is_an_error(look, tmp_path, file):
    subject = subject_of(config_of("llama", **LLAMA), tmp_path, tokenizer=tokenizer_for("qwen3"), generation={})
    (tmp_path / file).write_text("{")
    assert codes(IDS.look(subject)) == [("error", "ids_unread")]
    assert codes(CHAT.look(subject)) == []


def test_embedding_that_training_grows_to_the_tokenizer(look):
    tokenizer = tokenizer_for("qwen3")
    (finding,) = look(
        IDS, tokenizer, generation={"eos_token_id": tokenizer.eos_token_id}, vocab_size=len(tokenizer) - 1
    )
    assert (finding.level, finding.code) == ("info", "ids")
    assert finding.message.values["grown"].values["tokens"] == len(tokenizer)


def test_token_behind_a_gap_in_the_tokenizer(look):
    core = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1, "</s>": 2, "far": 500}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="<unk>")
    assert [(each.code, each.message.values["value"]) for each in look(IDS, tokenizer)] == [("ids_outside", 500)]


def test_end_at_which_generation_does_not_stop(look):
    tokenizer = tokenizer_for("qwen3")
    other = tokenizer.eos_token_id - 1
    (finding,) = look(IDS, tokenizer, generation={"eos_token_id": other})
    assert (finding.level, finding.code) == ("warning", "ids_end")
    assert look(IDS, tokenizer, generation={"eos_token_id": fixed_ids(finding)})[0].code == "ids"


def fixed_ids(finding):
    """What the fix says to write."""
    return json.loads(f"{{{finding.fix.partition(' ')[2].rpartition(' into ')[0]}}}")["eos_token_id"]


def chats(look, name, **generation):
    tokenizer = tokenizer_for(name)
    return look(CHAT, tokenizer, generation={"eos_token_id": ids_of(tokenizer, *ends_of(name)), **generation})


@pytest.mark.parametrize("name", names())
def test_real_templates(look, name):
    """Those that take no text are told; the others are learned right."""
    expected = ("warning", "chat_refused") if name in PARTS_ONLY else ("info", "chat")
    assert codes(chats(look, name)) == [expected]


def test_tokenizer_without_a_template(look):
    tokenizer = tokenizer_for.__wrapped__("qwen3")
    tokenizer.chat_template = None
    assert look(CHAT, tokenizer) == look(CHAT) == []


@pytest.mark.parametrize("name", ["qwen3", "llama3", "gemma3", "glm4moe", "gptoss"])
def test_end_of_turn_at_which_generation_does_not_stop(look, name):
    """As of base models, whose texts end otherwise than their conversations; the fix mends it."""
    tokenizer = tokenizer_for.__wrapped__(name)
    tokenizer.eos_token = "<bos>"
    (finding,) = look(CHAT, tokenizer, generation={"eos_token_id": tokenizer.eos_token_id})
    assert (finding.level, finding.code) == ("error", "chat_stops")
    assert codes(look(CHAT, tokenizer, generation={"eos_token_id": fixed_ids(finding)})) == [("info", "chat")]


def without_end(sample):
    """As where a turn ends with what opens the next one, and that is not learned (GLM)."""
    following = [*sample.learned[1:], False]
    return replace(sample, learned=[mark and after for mark, after in zip(sample.learned, following, strict=True)])


def to_the_end(sample):
    """As where all that follows the first call is taken for the assistant's (gpt-oss)."""
    first = sample.learned.index(True)
    return replace(sample, learned=[k >= first for k in range(len(sample.ids))])


def nothing(sample):
    return replace(sample, learned=[False] * len(sample.ids))


def beyond(sample):
    """Behind each end three tokens of what follows it."""
    marks = sample.learned
    return replace(sample, learned=[any(marks[max(0, k - 3) : k + 1]) for k in range(len(marks))])


@pytest.mark.parametrize("name", ["qwen3", "llama3", "gptoss", "glm4moe", "gemma4", "deepseekv3"])
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (lambda samples: [without_end(each) for each in samples], "chat_ends"),
        (lambda samples: [to_the_end(each) for each in samples], "chat_others"),
        (lambda samples: [beyond(each) for each in samples], "chat_others"),
        (lambda samples: [nothing(samples[0]), *samples[1:]], "chat_answers"),
        (lambda samples: samples * 2, "chat_answers"),
    ],
    ids=["no end", "results of tools", "behind the end", "an answer lost", "answers twice"],
)
def test_faults_of_encoding(look, monkeypatch, name, fault, code):
    monkeypatch.setattr(tokens, "encode_chat", lambda *given: fault(encode_chat(*given)))
    assert ("error", code) in codes(chats(look, name))


def test_template_that_drops_what_it_marks(look):
    """Marks are obeyed, so nothing else tells that they hold no answer."""
    tokenizer = tokenizer_for.__wrapped__("qwen3")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        "{% generation %}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    )
    assert ("error", "chat_answers") in codes(look(CHAT, tokenizer))


def test_tokenizer_that_knows_few_characters(look):
    """Their place is enough."""
    tokenizer = characters()
    tokenizer.chat_template = CHATML
    assert codes(look(CHAT, tokenizer, generation={"eos_token_id": ids_of(tokenizer, "<|im_end|>")})) == [
        ("info", "chat")
    ]


def test_tokenizer_that_knows_no_words(look):
    core = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }} </s> {% endfor %}"
    assert codes(look(CHAT, tokenizer)) == [("info", "chat_unread")]
