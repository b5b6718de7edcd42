"""The model and its tokenizer: from a name or folder, here or on the Hub, to something that can be trained."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from filelock import FileLock
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    dynamic_module_utils,
)

from dsrun.errors import DsrunError, MissingError, UsageError, one_line
from dsrun.hub.modelscope_cache import local_name
from dsrun.hub.reach import chain, refused, unreachable
from dsrun.models.families import family_of, other_models
from dsrun.recipe.mixture import specs_of
from dsrun.recipe.parsed_value import config_flags
from dsrun.recipe.preflight.files import is_path, refused_kind
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.plan import ModelTask
from dsrun.train.base.refusals import refusal
from dsrun.train.model.config_values import with_values
from dsrun.train.model.quantization import elements
from dsrun.train.model.text_part import text_config

logger = logging.getLogger(__name__)

HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""What the HTTP client raises and `datasets` lets through; releases of the Hub package differ in the client."""

NO_NETWORK = (ConnectionError, TimeoutError, socket.gaierror, LocalEntryNotFoundError)
ABSENT_FILE = "does not appear to have a file named"

LOCK = ".dsrun.lock"

AUTO_CLASS = {"seq2seq": AutoModelForSeq2SeqLM, "causal-lm": AutoModelForCausalLM}
KNOWN = {"seq2seq": MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, "causal-lm": MODEL_FOR_CAUSAL_LM_MAPPING}


def auto_class(config: Any) -> Any:
    return AUTO_CLASS["seq2seq" if config.is_encoder_decoder else "causal-lm"]


def is_unreachable(error: BaseException) -> bool:
    """Whether `error` comes of a missing network, or of HF_HUB_OFFLINE with nothing in the cache."""
    if any(isinstance(each, NO_NETWORK) for each in chain(error)):
        return True
    # Offline, transformers finds no weights in the cache and says that the repository has none.
    return constants.HF_HUB_OFFLINE and isinstance(error, OSError) and ABSENT_FILE in str(error)


def not_fetched(what: str, error: BaseException, *, instead: str) -> MissingError | None:
    """The error for `what` ("model x") where the Hub refuses it or cannot be reached, which `error` tells; `instead`
    names the flag that takes local files. None for other errors."""
    answered = refused(what, error, os.environ, instead=instead)
    if answered or not is_unreachable(error):
        return answered
    reason = one_line(error).partition(" Check your internet connection")[0]
    return unreachable(what, reason, instead=instead, offline=constants.HF_HUB_OFFLINE)


@contextmanager
def one_at_a_time(trusted: bool) -> Iterator[None]:
    """No other process on this machine copies a model's own code in here; without `trusted` there is none to copy.

    transformers copies that code over what is there, and imports it right after: one rank of a machine would import
    what another has just emptied to write it again. Where nothing can be written no lock is needed."""
    with ExitStack() as stack:
        if trusted:
            folder = Path(dynamic_module_utils.HF_MODULES_CACHE)
            # filelock raises NotImplementedError on a file system without flock(2).
            with suppress(OSError, NotImplementedError):
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(folder / LOCK))
        yield


class OwnCode:
    """Loads the code alone, by the name that all of transformers' classes have for it."""

    @staticmethod
    def from_pretrained(name: str, *, reference: str, **options: Any) -> type:
        return dynamic_module_utils.get_class_from_dynamic_module(reference, name, **options)


def load_config(spec: TrainSpec) -> Any:
    name = spec.config_name or spec.model
    if name is None:
        if spec.model_type not in CONFIG_MAPPING:
            raise UsageError(f"--model-type {spec.model_type} is not an architecture that transformers knows")
        config = CONFIG_MAPPING[spec.model_type]()
    else:
        with one_at_a_time(spec.trust_remote_code):
            config = from_hub(AutoConfig, name, "model", spec, trust_remote_code=spec.trust_remote_code)
    return with_values(text_config(config), spec)


def decide_task(config: Any, requested: str, model: str | None) -> ModelTask:
    """The task the config's architecture is made for; `requested` is checked against what it can do."""
    kind = config.model_type
    if family_of(kind).reads_both_ways and not getattr(config, "is_decoder", False):
        raise refused_kind("kind.both_ways", what=model, kind=kind)
    able = [task for task, mapping in KNOWN.items() if kind not in other_models() and type(config) in mapping]
    is_stock = type(config).__module__.startswith("transformers.")
    if requested not in ("auto", "distill"):
        wanted: ModelTask = "seq2seq" if requested == "seq2seq" else "causal-lm"
        if wanted not in able and is_stock:
            if requested == "dpo":
                raise refused_kind("kind.dpo", what=model, kind=kind)
            hint = f"use --task {able[0]}" if able else "choose another model"
            raise UsageError(f"--task {requested}: {model} is a {kind} model, which cannot do that", fix=hint)
        return wanted
    task: ModelTask = "seq2seq" if config.is_encoder_decoder else "causal-lm"
    if task not in able and is_stock:
        raise refused_kind("kind.neither", what=model, kind=kind)
    return task


def fit_embeddings(model: Any, tokenizer: Any) -> str | None:
    """Grow the embedding to the tokenizer where tokens were added; returns what was done."""
    rows = model.config.get_text_config().vocab_size
    if len(tokenizer) <= rows:
        return None
    # transformers draws new rows around the mean of the old ones (mean_resizing), as small random ones would take
    # probability from all words at once: https://nlp.stanford.edu/~johnhew/vocab-expansion.html
    model.resize_token_embeddings(len(tokenizer))
    return f"the embedding was grown from {rows:,} to {len(tokenizer):,} rows, as the tokenizer has more tokens"


def stretch_positions(model: Any, length: int | None) -> str | None:
    """Give the model `length` positions (--resize-position-embeddings) where it has fewer; returns what was done. Of
    transformers' models only the Pegasus family can be resized."""
    known = getattr(model.config, "max_position_embeddings", None)
    if length is None or known is None or length <= known:
        return None
    try:
        model.resize_position_embeddings(length)
    except NotImplementedError as error:
        raise refusal("model.positions", kind=model.config.model_type, known=known) from error
    return f"the model was stretched from {known:,} to {length:,} positions"


def parameter_count(model: Any, *, trainable: bool = False) -> int:
    """Parameters of the whole model, those that ZeRO-3 keeps elsewhere included."""
    return sum(elements(p) for p in model.parameters() if p.requires_grad or not trainable)


def set_languages(model: Any, tokenizer: Any, spec: TrainSpec) -> None:
    """What multilingual seq2seq models generate first: --forced-bos-token, else the target language's token."""
    # Where sets of a mixture have several, texts begin in the language that the model chooses.
    languages = {each.lang or each.target_lang for each in specs_of(spec).values()}
    language = languages.pop() if len(languages) == 1 else None
    token = spec.forced_bos_token or (language if language and _is_language_token(tokenizer, language) else None)
    if token is None:
        return
    identity = tokenizer.convert_tokens_to_ids(token)
    if identity is None or identity == tokenizer.unk_token_id:
        raise UsageError(f"--forced-bos-token {token}: the tokenizer has no such token")
    model.generation_config.forced_bos_token_id = identity
    if model.config.decoder_start_token_id is None:
        model.config.decoder_start_token_id = identity


def _is_language_token(tokenizer: Any, language: str) -> bool:
    """NLLB and mBART-50 keep language codes as special tokens and have a tgt_lang; T5 has neither."""
    if language in (getattr(tokenizer, "lang_code_to_id", None) or {}):
        return True
    if not hasattr(tokenizer, "tgt_lang"):
        return False
    return tokenizer.convert_tokens_to_ids(language) not in (None, tokenizer.unk_token_id)


def from_hub(loader: Any, name: str, what: str, spec: TrainSpec, **options: Any) -> Any:
    """`loader.from_pretrained(name)`, with its many ways to fail as one line."""
    common = {"cache_dir": spec.cache_dir, "revision": spec.model_revision, "token": spec.token}
    folder = local_name(name, "model", spec, os.environ)
    try:
        return loader.from_pretrained(folder, **common, **options)
    except (OSError, ValueError, KeyError) as error:
        logger.exception("loading %s %s failed", what, name)
        first = one_line(error)
        if kernel := refused_attention(options.get("attn_implementation"), name, first):
            raise kernel from error
        absent = None if is_path(folder) else not_fetched(f"{what} {name}", error, instead=f"--{what} DIR")
        if absent:
            raise absent from error
        if "config" in options and not isinstance(error, OSError) and (refused := refused_values(spec, error)):
            raise refused from error
        raise refusal("model.not_loaded", what=what, name=name, first=first) from error
    except (UnpicklingError, RecursionError) as error:
        logger.exception("loading %s %s failed", what, name)
        # torch's own advice is to set weights_only=False.
        reason = "a file of it holds more than weights" if isinstance(error, UnpicklingError) else "nested too deeply"
        raise UsageError(f"{what} {name!r} could not be loaded: {reason}", fix="get it as safetensors") from None
    except ImportError as error:
        raise MissingError(f"{what} {name!r} needs a package: {one_line(error)}") from error


def refused_attention(requested: str | None, name: str, first: str) -> DsrunError | None:
    """The error where `first`, transformers' message, is about the attention kernel that was asked for."""
    if not requested or not ("attn_implementation" in first or "Attention" in first):
        return None
    return refusal("model.attention", requested=requested, name=name, why=first.partition(". ")[0])


def refused_values(spec: TrainSpec, error: Exception) -> UsageError | None:
    """The error where no model can be made of a config in which the user has set values: its class checks their types,
    and not whether there is an activation of this name."""
    flags = config_flags(spec)
    return UsageError(f"{flags}: no model can be made: {type(error).__name__}: {one_line(error)}") if flags else None


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
