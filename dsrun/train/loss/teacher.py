"""The teacher of a distillation: loaded as its files have it, and compared with the model that learns from it."""

from typing import Any

from dsrun.errors import UsageError
from dsrun.recipe.preflight.files import of_teacher
from dsrun.system.terminal.display import NotePrinter
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.data.encoding.tokenizer import load_tokenizer
from dsrun.train.model.build_model import build
from dsrun.train.model.load import load_config

_SAME = "choose a teacher with the tokenizer of --model"


def load_teacher(plan: TrainingPlan, tokenizer: Any, student: Any, *, notify: NotePrinter) -> Any:
    """The teacher in the dtype of its files. Raises UsageError where token ids mean something else to it, or it reads
    other inputs. All ranks call this together."""
    spec = of_teacher(plan.recipe.spec)
    named = f"--teacher {spec.model}"
    config = load_config(spec)
    if bool(config.is_encoder_decoder) != (plan.task == "seq2seq"):
        kinds = ("a causal LM", "an encoder-decoder")
        what = f"{named} is {kinds[config.is_encoder_decoder]} and --model is {kinds[not config.is_encoder_decoder]}"
        raise UsageError(what, fix="choose a teacher of the same kind")
    rows, own = (each.get_text_config().vocab_size for each in (config, student.config))
    theirs = {number: token for token, number in load_tokenizer(spec).get_vocab().items()}
    others = [token for token, number in tokenizer.get_vocab().items() if theirs.get(number, token) != token]
    if others:
        what = (
            f"{named} has another tokenizer: {len(others):,} token ids mean other tokens to it, such as {others[0]!r}"
        )
        raise UsageError(what, fix=_SAME)
    if len(tokenizer) > rows:
        raise UsageError(f"{named} has {rows:,} tokens, and the tokenizer {len(tokenizer):,}", fix=_SAME)
    if rows != own:
        notify(f"the models' vocabularies have {own:,} and {rows:,} rows: the first {min(rows, own):,} are compared")
    return build(spec, config, plan.task, device=plan.world.device)
