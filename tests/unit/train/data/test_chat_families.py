"""Chat templates that treat earlier turns otherwise than the last: what is learned is what the model writes itself."""

from __future__ import annotations

import pytest

from dsrun.train.data.encoding.chat import encode_chat, set_template
from tests.unit.train.data.conftest import characters

# Each behaves as the templates of a family do; the texts are ours.
TEMPLATES = {
    # Qwen3: reasoning, or an empty one, stands in the answers after the last question only.
    "qwen3": (
        "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == 'user' %}"
        "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
        "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{%- if m.role == 'assistant' and loop.index0 > ns.last %}"
        "{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{%- endif %}"
        "{{ m.content + '<|im_end|>\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
    ),
    # Phi-3: every turn has its end, and the conversation one more.
    "phi3": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% else %}{{ '</s>' }}{% endif %}"
    ),
    # GLM: a turn ends where the next one begins.
    "glm": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    # gpt-oss: the last answer ends otherwise than earlier ones, whose reasoning is gone.
    "gpt-oss": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' and loop.last and m.thinking %}"
        "{{ '[analysis]' + m.thinking + '<|im_end|>[final]' }}{% endif %}"
        "{{ m.content }}{% if m.role == 'assistant' and loop.last %}{{ '</s>' }}{% else %}{{ '<|im_end|>' }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    # DeepSeek-R1 and Nemotron: the prompt opens a reasoning, of which the history keeps nothing.
    "r1": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content.split('</think>')[-1] + '<|im_end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
    ),
}
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo", "reasoning_content": "greet", "thinking": "greet"},
    {"role": "user", "content": "so?"},
    {"role": "assistant", "content": "ok", "reasoning_content": "agree", "thinking": "agree"},
]


@pytest.fixture
def tokenizer(request):
    found = characters()
    found.chat_template = TEMPLATES[request.param]
    return found


def parts(tokenizer, sample):
    """[text before, text learned] of each part of a sample that is learned."""
    found, before = [], ""
    for token, mark in zip(tokenizer.convert_ids_to_tokens(sample.ids), sample.learned, strict=True):
        if mark and not (found and found[-1][2]):
            found.append([before, "", True])
        elif not mark and found:
            found[-1][2] = False
        if mark:
            found[-1][1] += token
        before += token
    return [(before, text) for before, text, _ in found]


def learned(tokenizer, messages):
    """What is learned of each answer, and what the model has read by then, in the order of the answers."""
    samples = encode_chat(tokenizer, messages, None, "x")
    return sorted(
        [part for sample in samples for part in parts(tokenizer, sample)], key=lambda part: len(part[0])
    ), len(samples)


@pytest.mark.parametrize(
    ("tokenizer", "expected", "samples"),
    [
        ("qwen3", ["<think>\ngreet\n</think>\n\nyo<|im_end|>", "<think>\nagree\n</think>\n\nok<|im_end|>"], 2),
        ("phi3", ["yo<|im_end|>", "ok<|im_end|>\n</s>"], 1),
        ("glm", ["yo<|im_start|>", "ok</s>"], 1),
        ("gpt-oss", ["[analysis]greet<|im_end|>[final]yo</s>", "[analysis]agree<|im_end|>[final]ok</s>"], 2),
    ],
    indirect=["tokenizer"],
)
def test_each_answer_learned_after_what_the_model_sees_then(tokenizer, expected, samples):
    found, count = learned(tokenizer, TALK)
    assert [text for _, text in found] == expected
    assert count == samples
    for (before, _), answer in zip(found, (2, 4), strict=True):
        assert before == tokenizer.apply_chat_template(TALK[:answer], add_generation_prompt=True, tokenize=False)


@pytest.mark.parametrize("tokenizer", ["glm"], indirect=True)
def test_end_of_an_empty_answer_that_the_next_turn_writes(tokenizer):
    talk = [*TALK[1:2], {"role": "assistant", "content": ""}, *TALK[3:4], {"role": "assistant", "content": ""}]
    found, _ = learned(tokenizer, talk)
    assert [text for _, text in found] == ["<|im_start|>", "</s>"]


@pytest.mark.parametrize("tokenizer", ["r1"], indirect=True)
def test_answer_that_does_not_continue_the_generation_prompt(tokenizer):
    """Without a reasoning it is learned from where the prompt forks."""
    plain = [{"role": each["role"], "content": each["content"]} for each in TALK]
    found, count = learned(tokenizer, plain)
    assert [text for _, text in found] == ["yo<|im_end|>", "ok<|im_end|>"]
    assert count == 1


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("tokenizer", ["r1"], indirect=True)
def test_reasoning_that_the_prompt_opens_is_learned_though_the_template_drops_it(tokenizer, inline):
    talk = TALK
    if inline:
        thoughts = [f"<think>\n{each.get('thinking')}\n</think>\n\n" * ("thinking" in each) for each in TALK]
        talk = [
            {"role": m["role"], "content": thought + m["content"]} for m, thought in zip(TALK, thoughts, strict=True)
        ]
    found, count = learned(tokenizer, talk)
    assert [text for _, text in found] == ["greet\n</think>\n\nyo<|im_end|>", "agree\n</think>\n\nok<|im_end|>"]
    assert count == 2
    for (before, _), answer in zip(found, (2, 4), strict=True):
        assert before == tokenizer.apply_chat_template(TALK[:answer], add_generation_prompt=True, tokenize=False)


@pytest.mark.parametrize("tokenizer", TEMPLATES, indirect=True)
def test_message_with_weight_0_is_read_and_not_learned(tokenizer):
    talk = [TALK[0], TALK[1], {**TALK[2], "unlearned": True}, *TALK[3:]]
    found, count = learned(tokenizer, talk)
    assert count == 1
    ((before, text),) = found
    assert "yo" in before
    assert "ok" in text


def test_weight_0_in_a_template_with_marks():
    tokenizer = characters()
    set_template(tokenizer, "chatml")
    found, _ = learned(tokenizer, [TALK[0], TALK[1], {**TALK[2], "unlearned": True}, *TALK[3:]])
    assert [text for _, text in found] == ["ok<|im_end|>"]
    assert [text for _, text in learned(tokenizer, TALK)[0]] == ["yo<|im_end|>", "ok<|im_end|>"]


def test_chatml_template_is_the_usual_one(causal):
    expected = causal.apply_chat_template(TALK[:4], add_generation_prompt=True, tokenize=False)
    set_template(causal, "chatml")
    assert causal.apply_chat_template(TALK[:4], add_generation_prompt=True, tokenize=False) == expected


def test_template_file_in_another_folder(causal, tmp_path, monkeypatch):
    """By its path from here, from the root and from the home folder."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "own.jinja").write_text("{{ messages }}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("deep/own.jinja", str(tmp_path / "deep" / "own.jinja"), "~/deep/own.jinja"):
        causal.chat_template = None
        set_template(causal, name)
        assert causal.chat_template == "{{ messages }}"
