"""The model folders as Transformers sees them: tokenizers that lose nothing, configs that train."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsrun.demo.corpus import LIMIT, english, romanian
from dsrun.demo.models import DEFAULTS, model_config
from dsrun.demo.tokenizers import t5_vocabulary, t5_words

VOCABULARY = t5_vocabulary()
numbers = st.integers(min_value=0, max_value=LIMIT - 1)


@pytest.fixture(scope="session")
def transformers():
    return pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def torch():
    module = pytest.importorskip("torch")
    # The models are tiny: more threads only wait for each other, for minutes on a busy machine.
    threads = module.get_num_threads()
    module.set_num_threads(1)
    yield module
    module.set_num_threads(threads)


@pytest.fixture(scope="session")
def t5_tokenizer(transformers, t5):
    return transformers.AutoTokenizer.from_pretrained(t5.model)


@pytest.fixture(scope="session")
def llama_tokenizer(transformers, llama):
    return transformers.AutoTokenizer.from_pretrained(llama.model)


def _rows(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@settings(deadline=None)
@given(numbers)
def test_every_number_word_in_t5_vocabulary(n):
    for phrase in (english(n), romanian(n)):
        assert all(word in VOCABULARY for word in t5_words(phrase))


def test_t5_vocabulary_ids_without_gaps():
    assert sorted(t5_vocabulary().values()) == list(range(len(t5_vocabulary())))


def test_t5_tokenizer_splits_words(t5_tokenizer):
    """The tokenizer cuts text by the rule of t5_words."""
    vocabulary = t5_vocabulary()
    assert len(t5_tokenizer) == len(vocabulary)
    for phrase in ("forty-five thousand nine", "o sută una mii", "translate english to romanian: ten"):
        ids = t5_tokenizer(phrase)["input_ids"]
        assert ids == [vocabulary[word] for word in t5_words(phrase)] + [t5_tokenizer.eos_token_id]


@settings(deadline=None)
@given(n=numbers)
def test_t5_tokenizer_round_trip(t5_tokenizer, n):
    for phrase in (english(n), romanian(n)):
        ids = t5_tokenizer(phrase)["input_ids"]
        assert t5_tokenizer.unk_token_id not in ids
        assert len(ids) < model_config("demo-t5")["n_positions"]
        assert t5_tokenizer.decode(ids, skip_special_tokens=True) == phrase


def test_t5_tokenizer_round_trip_of_test_split(t5, t5_tokenizer):
    phrases = [phrase for row in _rows(t5.test_file) for phrase in row["translation"].values()]
    ids = t5_tokenizer(phrases, padding=True)["input_ids"]
    assert t5_tokenizer.batch_decode(ids, skip_special_tokens=True) == phrases


def test_t5_tokenizer_normalises_capitals_and_cedillas(t5_tokenizer):
    """The tokenizer takes capitals, task prefixes and the old letters with a cedilla."""

    def tokens(text):
        return t5_tokenizer(text)["input_ids"]

    assert tokens("Translate English to Romanian: Forty-Two") == tokens("translate english to romanian: forty-two")
    assert t5_tokenizer.unk_token_id not in tokens("Translate Romanian to English: o sută")
    assert tokens("şase şi opt") == tokens("șase și opt")
    assert t5_tokenizer.unk_token_id in tokens("seventy bananas")


def test_t5_special_tokens(t5, t5_tokenizer, transformers):
    config = transformers.AutoConfig.from_pretrained(t5.model)
    generation = transformers.GenerationConfig.from_pretrained(t5.model)
    for holder in (config, generation):
        assert holder.pad_token_id == t5_tokenizer.pad_token_id == 0
        assert holder.eos_token_id == t5_tokenizer.eos_token_id == 1
        assert holder.decoder_start_token_id == 0
    assert t5_tokenizer.convert_tokens_to_ids("<unk>") == t5_tokenizer.unk_token_id == 2
    assert config.vocab_size == len(t5_tokenizer)
    assert config.dropout_rate == 0
    assert (
        generation.max_length == DEFAULTS["demo-t5"]["generation_max_length"] == model_config("demo-t5")["n_positions"]
    )


def test_t5_trains_from_its_config(t5, t5_tokenizer, transformers, torch):
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(t5.model)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    assert type(model).__name__ == "T5ForConditionalGeneration"
    assert sum(p.numel() for p in model.parameters()) < 500_000
    batch = t5_tokenizer(["forty-two", "nine hundred"], padding=True, return_tensors="pt")
    labels = t5_tokenizer(["patruzeci și doi", "nouă sute"], padding=True, return_tensors="pt")["input_ids"]
    labels[labels == t5_tokenizer.pad_token_id] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=DEFAULTS["demo-t5"]["learning_rate"])
    losses = []
    for _ in range(60):
        loss = model(**batch, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.1 < losses[0]
    model.generation_config = transformers.GenerationConfig.from_pretrained(t5.model)
    answer = t5_tokenizer.batch_decode(model.eval().generate(**batch), skip_special_tokens=True)
    assert answer == ["patruzeci și doi", "nouă sute"]


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_llama_tokenizer_round_trip(llama_tokenizer, text):
    """Any text comes back from its tokens."""
    ids = llama_tokenizer(text, add_special_tokens=False)["input_ids"]
    if not any(token in text for token in llama_tokenizer.all_special_tokens):
        assert llama_tokenizer.decode(ids) == text


def test_llama_tokenizer_round_trip_of_test_split(llama, llama_tokenizer):
    texts = [row["text"] for row in _rows(llama.test_file)]
    ids = llama_tokenizer(texts)["input_ids"]
    assert all(row[0] == llama_tokenizer.bos_token_id for row in ids)
    assert llama_tokenizer.batch_decode(ids, skip_special_tokens=True) == texts
    # It was trained on such texts, so it must do far better than a token per byte.
    assert sum(map(len, ids)) < sum(map(len, texts)) / 2.5


def test_llama_special_tokens(llama, llama_tokenizer, transformers):
    config = transformers.AutoConfig.from_pretrained(llama.model)
    generation = transformers.GenerationConfig.from_pretrained(llama.model)
    for holder in (config, generation):
        assert holder.pad_token_id == llama_tokenizer.pad_token_id == 0
        assert holder.bos_token_id == llama_tokenizer.bos_token_id == 1
        assert holder.eos_token_id == llama_tokenizer.eos_token_id == 2
    assert config.vocab_size == len(llama_tokenizer)
    assert llama_tokenizer.model_max_length == config.max_position_embeddings == 512


def test_llama_chat_template(llama_tokenizer):
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    text = llama_tokenizer.apply_chat_template(turns, tokenize=False)
    assert text == "<|begin|><|user|>\nhi<|end|>\n<|assistant|>\nyes<|end|>\n"
    asked = llama_tokenizer.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
    assert asked == "<|begin|><|user|>\nhi<|end|>\n<|assistant|>\n"
    out = llama_tokenizer.apply_chat_template(turns, return_dict=True, return_assistant_tokens_mask=True)
    said = [i for i, keep in zip(out["input_ids"], out["assistant_masks"], strict=True) if keep]
    assert llama_tokenizer.decode(said) == "yes<|end|>"
    roles = llama_tokenizer.convert_tokens_to_ids(["<|system|>", "<|user|>", "<|assistant|>"])
    assert roles == [3, 4, 5]


def test_llama_trains_from_its_config(llama, llama_tokenizer, transformers, torch):
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(llama.model)
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert sum(p.numel() for p in model.parameters()) < 4_000_000
    batch = llama_tokenizer("Return a list of the words in the string.", return_tensors="pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=DEFAULTS["demo-llama"]["learning_rate"])
    losses = []
    for _ in range(20):
        loss = model(**batch, labels=batch["input_ids"]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
