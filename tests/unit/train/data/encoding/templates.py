"""The chat templates of real models, which TRL ships, with small tokenizers that know their control tokens; and
conversations to render by them."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dsrun.datafiles import json_beside
from dsrun.train import certify

# What ends an answer, by the beginning of the template's name, the tokenizer's end token first.
ENDS = {
    "cohere": ["<|END_OF_TURN_TOKEN|>"],
    "deepseek": ["<｜end▁of▁sentence｜>"],
    "gemma4": ["<eos>", "<turn|>", "<|tool_response>"],
    "gemma": ["<eos>", "<end_of_turn>"],
    "diffusion_gemma": ["<eos>", "<turn|>", "<|tool_response>"],
    "glm": ["<|endoftext|>", "<|user|>", "<|observation|>"],
    "gptoss": ["<|return|>", "<|call|>"],
    "llama3": ["<|eot_id|>"],
    "llava": ["</s>"],
    "muse": ["<|eot|>"],
    "phi": ["<|endoftext|>", "<|end|>"],
    "": ["<|im_end|>"],
}
PARTS_ONLY = {"idefics3", "smolvlm", "llava_next"}
"""Templates that take no text as the content of a message."""

_CONTROL = re.compile(
    r"<[|｜][\w▁]+[|｜]?>|<\w+[|｜]>|</?(?:think|tool_call|tool_response|start_of_turn|end_of_turn|arg_key|arg_value)>"
)


def folder():
    found = find_spec("trl")
    if found is None:
        pytest.skip("TRL, whose templates these are, is not installed", allow_module_level=True)
    return Path(found.submodule_search_locations[0], "chat_templates")


def names():
    """Of all models' own templates."""
    return sorted(file.stem for file in folder().glob("*.jinja") if not file.stem.endswith("_training"))


def ends_of(name):
    return next(ends for start, ends in ENDS.items() if name.startswith(start))


@cache
def tokenizer_for(name, template=None):
    """One token a byte, and the control tokens of this model; `template` is another one to render by."""
    text = (folder() / f"{name}.jinja").read_text(encoding="utf-8")
    control = sorted({*_CONTROL.findall(text), *ends_of(name), "<bos>"})
    core = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    special = {"eos_token": ends_of(name)[0], "bos_token": "<bos>", "additional_special_tokens": control}
    found = PreTrainedTokenizerFast(tokenizer_object=core, **special)
    found.chat_template = (folder() / f"{template or name}.jinja").read_text(encoding="utf-8")
    return found


def asked(n):
    return {"role": "user", "content": f"question-{n} ü?"}


def calls(*which, content="", **more):
    called = [
        {
            "type": "function",
            "id": f"call{n:05}",
            "function": {"name": f"tool_{n}", "arguments": {"city": f"place-{n}"}},
        }
        for n in which
    ]
    return {"role": "assistant", "content": content, "tool_calls": called, **more}


def result(n):
    return {"role": "tool", "content": f"result-{n}", "tool_call_id": f"call{n:05}", "name": f"tool_{n}"}


_TOLD = json_beside(certify.__file__, "look/conversations.json")
TOOLS = _TOLD["tools"]
CONVERSATIONS = {name: each["messages"] for name, each in _TOLD["conversations"].items()}


def tools_of(messages):
    return TOOLS if any("tool_calls" in each for each in messages) else None


def parts(tokenizer, sample):
    """[text before, text learned] of each part of a sample that is learned."""
    found, edge = [], None
    for k, mark in enumerate([*sample.learned, False]):
        if mark and edge is None:
            edge = k
        elif not mark and edge is not None:
            found.append((tokenizer.decode(sample.ids[:edge]), tokenizer.decode(sample.ids[edge:k])))
            edge = None
    return found
