"""What the checks of `dsrun certify` look at: the model as it is, a small one of its architecture, and trained runs.

The small model's tokenizer is one of words; the rows in them mean nothing, and are the same everywhere."""

import json
import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig

from dsrun.certify.request import CertifyRequest
from dsrun.errors import MissingError, UsageError, one_line
from dsrun.models.folder import FoundModel, find
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.refusals import refusal
from dsrun.train.certify import small
from dsrun.train.model.load import decide_task, one_at_a_time
from dsrun.train.model.text_part import text_config

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "vocab.json")
SHORTEST = 8
"""Tokens of a text that a small model writes, at least."""
EXPERT_MATRICES = 3
"""Dimensions of the parameter that holds one matrix of all experts."""


@dataclass(frozen=True)
class SmallRun:
    """A run that certify trained in `folder`: `says` what it is, `error` why it failed, "" if it did not. One that was
    to go on with a failed run has that run's error."""

    name: str
    says: str
    folder: Path
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class CertifySubject:
    """`found` is the model with its config.json and, where its weights are on this machine, their shapes; `config`
    its transformers config; `tokenizer` whether a tokenizer of its own lies beside it. `small` is the folder of the
    small model, with random weights; `words` that of its tokenizer; `rows` are files of rows for it, by split.
    `experts` are the parameters that hold the experts' matrices, as PEFT wants them named. `runs` are those that were
    trained, by name."""

    request: CertifyRequest
    found: FoundModel
    config: Any
    task: str
    small: Path
    words: Path
    tokenizer: bool
    rows: Mapping[str, Path] = field(default_factory=dict)
    experts: tuple[str, ...] = ()
    runs: Mapping[str, SmallRun] = field(default_factory=dict)

    def spec(self, folder: Path, **more: Any) -> TrainSpec:
        """The settings by which training loads the model in a folder."""
        return TrainSpec(model=str(folder), trust_remote_code=self.request.trust_remote_code, **more)

    @property
    def built(self) -> Path:
        """A file of the small model's tensors as they were made, of buffers too."""
        return self.small.with_name("built.pt")


def named_tensors(model: Any) -> dict[str, torch.Tensor]:
    """All parameters and buffers, also those that no file holds."""
    return {name: each.detach() for name, each in (*model.named_parameters(), *model.named_buffers())}


def load_subject(request: CertifyRequest, scratch: Path) -> CertifySubject:
    """The model that was asked for, with the small one built below `scratch`. Raises DsrunError where there is no such
    model or it cannot be made small."""
    found = find(request.model)
    config = _config(request, found, scratch / "original")
    task = _task(request, config)
    folder = scratch / "small"
    made = small.small_config(config)
    model = small.build(made, folder, trust_remote_code=request.trust_remote_code)
    words = WORDS[: getattr(made.get_text_config(), "vocab_size", len(WORDS))]
    # Of texts that end at once there would be nothing to compare.
    model.generation_config.min_new_tokens = SHORTEST
    model.generation_config.save_pretrained(folder)
    names = [name for name, each in model.named_parameters() if each.dim() == EXPERT_MATRICES and "experts" in name]
    subject = CertifySubject(
        request=request,
        found=found,
        config=config,
        task=task,
        small=folder,
        tokenizer=any((found.folder / name).is_file() for name in _TOKENIZERS),
        words=save_tokenizer(scratch / "words", words),
        rows=write_rows(scratch, task, words),
        experts=tuple(sorted({".".join(name.split(".")[-2:]) for name in names})),
    )
    torch.save(named_tensors(model), subject.built)
    return subject


def _config(request: CertifyRequest, found: FoundModel, folder: Path) -> Any:
    """From a copy of its config.json, whatever that was called; the model's own code lies beside it if it may run."""
    kind, trusted = found.config["model_type"], request.trust_remote_code
    if kind not in CONFIG_MAPPING and not (trusted and "auto_map" in found.config):
        key = "certify.own_code" if "auto_map" in found.config else "certify.unknown"
        raise refusal(key, model=request.model, kind=kind, version=version("transformers"))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(found.config), encoding="utf-8")
    for file in found.folder.glob("*.py") if trusted else ():
        shutil.copy(file, folder)
    try:
        with one_at_a_time(trusted):
            return AutoConfig.from_pretrained(folder, trust_remote_code=trusted)
    except ImportError as error:
        raise MissingError(f"{request.model} needs a package: {one_line(error)}") from error
    except Exception as error:  # the classes of configs check their values, each in its way
        raise UsageError(f"the config of {request.model} cannot be read: {one_line(error)}") from error


def _task(request: CertifyRequest, config: Any) -> str:
    """What the config is made for, or dpo. Raises UsageError where that is not what was asked for."""
    made_for = decide_task(text_config(deepcopy(config)), "auto", request.model)
    wanted = {None: made_for, "causal": "causal-lm"}.get(request.task, request.task)
    if wanted != made_for and (wanted, made_for) != ("dpo", "causal-lm"):
        raise refusal("certify.task", request=request, kind=config.model_type, made_for=made_for)
    return str(wanted)


WORDS = ("<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(125)))
"""The longest vocabulary; the ids of the first two are those of padding and of the end."""
LONGEST = 64
"""Tokens of a sample, at most."""
_TRAINED, _TESTED = 29, 5
"""Rows: a last batch that is not full, as real data has one."""


def save_tokenizer(folder: Path, words: Sequence[str] = WORDS) -> Path:
    """The folder. It has no config.json beside it, by whose model_type transformers would choose another class."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=LONGEST
    ).save_pretrained(folder)
    return folder


def write_rows(folder: Path, task: str, words: Sequence[str] = WORDS) -> dict[str, Path]:
    """Files of rows of very different lengths, by split: pairs of a source and itself backwards, or preferences."""
    make = _preference if task == "dpo" else _pair
    splits = {"train": range(_TRAINED), "test": range(100, 100 + _TESTED)}
    files = {split: folder / f"{split}.jsonl" for split in splits}
    for split, numbers in splits.items():
        files[split].write_text("".join(json.dumps(make(number, words)) + "\n" for number in numbers), encoding="utf-8")
    return files


def _pair(number: int, words: Sequence[str]) -> dict[str, Any]:
    text = _text(words, number, 2 + number % 9)
    return {"source": " ".join(text), "target": " ".join(reversed(text))}


def _preference(number: int, words: Sequence[str]) -> dict[str, Any]:
    prompt, rejected = _text(words, number, 2 + number % 4), _text(words, number + 7, 2 + number % 6)
    return {"prompt": " ".join(prompt) + " ", "chosen": " ".join(prompt), "rejected": " ".join(rejected)}


def _text(words: Sequence[str], number: int, count: int) -> list[str]:
    return [words[3 + (number * 7 + at * at * 3) % (len(words) - 3)] for at in range(count)]
