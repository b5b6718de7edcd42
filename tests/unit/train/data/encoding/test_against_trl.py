"""TRL's templates for training mark what is learned; the models' own ones, without marks, must come to the same."""

import pytest
from jinja2 import TemplateError

from dsrun.errors import UsageError
from dsrun.train.data.encoding.chat import encode_chat
from dsrun.train.data.encoding.written import CallNotWritten, reasoning_apart
from tests.unit.train.data.encoding.templates import (
    CONVERSATIONS,
    PARTS_ONLY,
    TOOLS,
    asked,
    calls,
    ends_of,
    folder,
    names,
    parts,
    result,
    tokenizer_for,
)

# Without characters of several tokens, of which TRL's marks lose the last.
ALIKE = {
    "two turns": [
        asked(1),
        {"role": "assistant", "content": "reply-1"},
        asked(2),
        {"role": "assistant", "content": "r"},
    ],
    "reasoning": [asked(1), {"role": "assistant", "content": "reply-1", "reasoning_content": "reason-1"}],
    "empty answer": [asked(1), {"role": "assistant", "content": ""}],
    "call": [asked(1), calls(1), result(1), {"role": "assistant", "content": "reply-2"}],
    "parallel calls": [asked(1), calls(1, 2), result(1), result(2), {"role": "assistant", "content": "reply-2"}],
}
# What TRL has in the loss that a prompt holds already, by the beginning of the template's name.
PROMPTS = {
    "deepseek": ("<｜Assistant｜>", "<｜tool▁outputs▁end｜>"),
    "gptoss": ("<|start|>assistant",),
    "muse": ("<|start|>assistant",),
    "nemotron": ("<think>\n", "<think>"),
    "qwen3_5_nothink": ("<think>\n\n</think>\n\n", "<think>\n"),
    "qwen3_": ("<think>\n",),
}
# TRL does not learn a reasoning that is a field here, which the prompt begins.
OTHERWISE = {("deepseek_r1_distill", "reasoning"), ("deepseekv3", "reasoning")}
PAIRS = [name for name in names() if (folder() / f"{name}_training.jinja").is_file() and name not in PARTS_ONLY]


def of_trl(name, messages, tools):
    tokenizer = tokenizer_for(name, f"{name}_training")
    how = {"return_dict": True, "return_assistant_tokens_mask": True}
    found = tokenizer.apply_chat_template(messages, tools=tools, **how)
    runs, last = [], False
    for token, mark in zip(found["input_ids"], found["assistant_masks"], strict=True):
        if mark:
            runs[-1:] = [[*runs[-1], token]] if last else [*runs[-1:], [token]]
        last = mark
    texts = [tokenizer.decode(run) for run in runs]
    prompts = next((known for start, known in PROMPTS.items() if name.startswith(start)), ())
    return [next((text.removeprefix(each) for each in prompts if text.startswith(each)), text) for text in texts]


def ended(name, texts):
    """Texts without the token that ends them, as it may be one of several, and without line breaks of a header."""
    for end in (*ends_of(name), "<|end|>"):
        texts = [text.strip().removesuffix(end).rstrip() for text in texts]
    return sorted(texts)


@pytest.mark.parametrize("case", ALIKE)
@pytest.mark.parametrize("name", PAIRS)
def test_learned_as_by_the_marks_of_trl(name, case):
    messages = ALIKE[case]
    tools = TOOLS if "call" in case else None
    try:
        samples = encode_chat(tokenizer_for(name), messages, tools, "x")
    except CallNotWritten:
        # TRL learns an empty answer, or one call of two.
        assert "place-2" not in "".join(of_trl(name, messages, tools))
        return
    except UsageError:
        with pytest.raises(TemplateError):
            of_trl(name, messages, tools)
        return
    marked = of_trl(name, messages, tools)
    ours = [text for sample in samples for _, text in parts(tokenizer_for(name), sample)]
    assert (ended(name, ours) == ended(name, marked)) == ((name, case) not in OTHERWISE), (ours, marked)


@pytest.mark.parametrize("name", PAIRS)
def test_marks_of_a_template_are_obeyed(name):
    """Within what the model writes: no header that a template marks is learned, and each answer ends."""
    tokenizer = tokenizer_for(name, f"{name}_training")
    messages = ALIKE["two turns"]
    samples = encode_chat(tokenizer, messages, None, "x")
    found = [text for sample in samples for _, text in parts(tokenizer, sample)]
    assert ended(name, found) == ended(name, of_trl(name, messages, None))
    assert all(text.endswith(tuple(ends_of(name))) for text in found)


def test_reasoning_apart():
    answer = CONVERSATIONS["reasoning in the content"][1]
    assert reasoning_apart(answer) == {"role": "assistant", "content": "reply-1", "reasoning_content": "reason-1"}
    for other in ({**answer, "role": "user"}, {**answer, "thinking": "x"}, {**answer, "content": "</think> yes"}):
        assert reasoning_apart(other) == other
