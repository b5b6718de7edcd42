"""What is learned of a conversation under real models' templates: each answer and its end token once, nothing else."""

import re
from copy import copy

import pytest

from dsrun.errors import UsageError
from dsrun.train.data.encoding.chat import encode_chat, with_arguments
from dsrun.train.data.encoding.written import CallNotWritten, reasoning_apart
from tests.unit.train.data.encoding.templates import (
    CONVERSATIONS,
    PARTS_ONLY,
    TOOLS,
    ends_of,
    names,
    parts,
    tokenizer_for,
    tools_of,
)

# Conversations that a template renders and that are refused all the same.
UNTOLD = {
    # They drop the content beside a call.
    *((name, "call and content") for name in ("llama3_1", "llama3_2", "muse_glimmer")),
    # A second call is written without what begins the first.
    ("deepseekv3", "calls in turn"),
}


def render(tokenizer, messages, **how):
    """The text of messages as the template is given them; None where it refuses them."""
    for as_text in (False, True):
        told = [with_arguments(each, as_text=as_text) for each in messages]
        try:
            return tokenizer.apply_chat_template(told, tokenize=False, **how)
        except Exception:
            continue
    return None


def refusal(tokenizer, name, case, messages):
    """The error that must come; None for none."""
    written = [i + 1 for i, each in enumerate(messages) if each["role"] == "assistant"]
    rendered = [render(tokenizer, messages[:end], tools=tools_of(messages)) for end in (*written, len(messages))]
    if name in PARTS_ONLY or None in rendered:
        return UsageError
    places = re.findall(r"place-\d", str(messages))
    # Of a call alone, the text itself tells.
    if any(place not in rendered[-1] for place in places):
        return CallNotWritten
    return UsageError if (name, case) in UNTOLD else None


def check_texts(messages, texts, samples):
    """Each text of an answer once, no other text."""
    learned = "\n\n".join(texts)
    for each in messages:
        own = [each["content"].rpartition("</think>")[2].strip(), *re.findall(r"place-\d", str(each.get("tool_calls")))]
        wanted = each["role"] == "assistant" and not each.get("unlearned")
        for text in filter(None, own):
            assert learned.count(text) == wanted, text
    assert "explains" not in learned
    reasons = [reason for each in messages for reason in re.findall(r"reason-\d", str(each))]
    counts = [learned.count(reason) for reason in reasons]
    assert max(counts, default=0) <= 1
    assert (0 in counts) == any("reasoning" in sample.unread for sample in samples)


def is_prompt(tokenizer, messages, tools, before):
    """Whether this is what a model sees when it writes after these messages."""
    prompt = render(tokenizer, messages, tools=tools, add_generation_prompt=True)
    if prompt is None:
        return None
    header = render(tokenizer, messages[:1], add_generation_prompt=True) or prompt
    plain = render(tokenizer, messages[:1]) or ""
    # A generation prompt may begin a reasoning that the answer does not have, or lack a header that the answer has.
    allowed = max(len(header) - len(plain), len("<think>\n\n</think>\n\n"))
    return (prompt.startswith(before) or before.startswith(prompt)) and abs(len(prompt) - len(before)) <= allowed


@pytest.mark.parametrize("name", names())
def test_each_answer_and_its_end_is_learned_once(name):
    tokenizer, ends = tokenizer_for(name), ends_of(name)
    for case, messages in CONVERSATIONS.items():
        error = refusal(tokenizer, name, case, messages)
        if error:
            with pytest.raises(error) as refused:
                encode_chat(tokenizer, messages, tools_of(messages), "x")
            assert refused.type is error, case
            continue
        samples = encode_chat(tokenizer, messages, tools_of(messages), "x")
        learned = [part for sample in samples for part in parts(tokenizer, sample)]
        texts = [text for _, text in learned]
        answers = [i for i, each in enumerate(messages) if each["role"] == "assistant" and not each.get("unlearned")]
        assert len(texts) == len(answers), case
        check_texts(messages, texts, samples)
        for text in texts:
            # Phi-3 ends a whole conversation once more.
            body = text.removesuffix(f"\n{ends[0]}") if name.startswith("phi") else text
            assert sum(body.count(end) for end in ends) == 1, case
            assert body.endswith(tuple(ends)), case
        order = sorted(learned, key=lambda part: len(part[0]))
        for index, (before, _) in zip(answers, order, strict=True):
            histories = messages[:index], [reasoning_apart(each) for each in messages[:index]]
            found = [is_prompt(tokenizer, each, tools_of(messages), before) for each in histories if each]
            assert not found or None in found or any(found), (case, before)


@pytest.mark.parametrize("name", [name for name in names() if name not in PARTS_ONLY])
def test_arguments_as_text_are_those_of_an_object(name):
    """OpenAI's format has them as JSON in a text, which no template may encode once more."""
    tokenizer = tokenizer_for(name)
    for case in ("call", "parallel calls"):
        messages = CONVERSATIONS[case]
        as_texts = [with_arguments(each, as_text=True) for each in messages]
        assert as_texts != messages
        try:
            expected = encode_chat(tokenizer, messages, None, "x")
        except UsageError:
            continue
        assert encode_chat(tokenizer, as_texts, None, "x") == expected
        assert '\\"' not in "".join(text for sample in expected for _, text in parts(tokenizer, sample))


@pytest.mark.parametrize("case", ["system", "two answers", "call"])
@pytest.mark.parametrize("name", ["cohere", "cohere2", "llama3_2", "qwen2_5", "qwen3", "qwen3_instruct_2507"])
def test_a_header_at_the_end_of_every_text_is_not_learned(name, case):
    """Command R7B's template asks for an answer whether or not it is told to."""
    plain, asking = tokenizer_for(name), copy(tokenizer_for(name))
    asking.chat_template = "{%- set add_generation_prompt = true %}" + plain.chat_template
    learned = []
    for tokenizer in (plain, asking):
        try:
            samples = encode_chat(tokenizer, CONVERSATIONS[case], tools_of(CONVERSATIONS[case]), "x")
        except UsageError as error:
            learned.append(type(error))
        else:
            learned.append([part for sample in samples for part in parts(tokenizer, sample)])
            unread = encode_chat(tokenizer, CONVERSATIONS["system"], TOOLS, "x")[0].unread
            assert ("tools" in unread) == (name in ("cohere", "cohere2"))
    assert learned[0] == learned[1]


@pytest.mark.parametrize("function", [{"arguments": "{not json"}, {"arguments": "3"}, {"name": "f"}, "f"])
def test_arguments_that_are_no_object_stay(function):
    calls = [{"function": function}, function]
    assert with_arguments({"role": "assistant", "tool_calls": calls})["tool_calls"] == calls


def test_no_calls_are_no_key():
    assert "tool_calls" not in with_arguments({"role": "assistant", "tool_calls": []})


@pytest.mark.parametrize(("name", "unread"), [("qwen3", False), ("gemma3", True), ("phi3", True), ("lfm2", False)])
def test_tools_that_the_template_does_not_write_are_named(name, unread):
    samples = encode_chat(tokenizer_for(name), CONVERSATIONS["one answer"], TOOLS, "x")
    assert [sample.unread for sample in samples] == [frozenset({"tools"}) if unread else frozenset()]
