"""Small real tokenizers, and a way to ask for data in one line."""

import json

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.data.data_request import DataRequest
from dsrun.train.data.mixture import preparation_of

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<pad>", "</s>", "<s>", "<unk>", "<|im_start|>", "<|im_end|>"]


def characters(**special):
    """One token a character: what a token stands for can be read off its id."""
    vocab = {token: i for i, token in enumerate(SPECIAL)}
    for code in [*range(32, 127), 10]:
        vocab[chr(code)] = len(vocab)
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        eos_token="</s>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        **special,
    )


@pytest.fixture
def causal():
    """A decoder's tokenizer: no padding token, adds nothing by itself."""
    tokenizer = characters()
    tokenizer.chat_template = CHATML
    return tokenizer


@pytest.fixture
def seq2seq():
    """An encoder-decoder's tokenizer: ends every text."""
    tokenizer = characters(pad_token="<pad>")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


@pytest.fixture
def merging():
    """A decoder's BPE that joins "a" and "b", and begins every text."""
    core = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4}, [("a", "b")]))
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DSRUN_CACHE", str(folder))
    return folder


def _named(name, value):
    """Paths as the command line gives them."""
    if name.endswith("_file"):
        return [str(each) for each in (value if isinstance(value, list) else [value])]
    return str(value) if name == "dataset" else value


@pytest.fixture
def prepare():
    """prepare(tokenizer, task, splits=…, required=…, model_type=…, vocab_size=…, max_positions=…, plugin=…, **spec).

    `prepare.told` are the lines on the way.
    """

    def call(tokenizer, task, *, splits=("train",), required=(), progress=lambda *_: None, **options):
        own = {
            name: options.pop(name)
            for name in ("model_type", "vocab_size", "max_positions", "plugin")
            if name in options
        }
        request = DataRequest(
            spec=TrainSpec(task=task, **{name: _named(name, value) for name, value in options.items()}),
            task="causal-lm" if task == "dpo" else task,
            splits=frozenset(splits),
            required=frozenset(required),
            **{"model_type": "bart", "vocab_size": 1000, "max_positions": None, **own},
        )
        return preparation_of(request)(request, tokenizer, notify=call.told.append, progress=progress)

    call.told = []
    return call


@pytest.fixture
def jsonl(tmp_path):
    """jsonl(rows, name) writes JSON lines."""

    def write(rows, name="train.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write
