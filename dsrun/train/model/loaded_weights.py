"""Whether a model's files give all of its weights, and nothing else.

transformers draws a weight that the files lack at random and leaves out what has no place, and both stand in its log
alone. A checkpoint whose weights were renamed since would so be trained from noise."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from torch import nn
from transformers import PreTrainedModel, modeling_utils

from dsrun.errors import UsageError
from dsrun.recipe.parsed_value import config_flags
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.terminal.display import counted
from dsrun.train.base.distributed import all_gather_object
from dsrun.train.base.refusals import notice_of
from dsrun.train.model.zero3 import replaced

FLAG = "--allow-missing-weights"
CHECK_FILES = "compare config.json and the files with where they are from"
SHOWN = 5
# Buffers that older versions of transformers saved, and that each model computes by now.
COMPUTED = ("inv_freq", "masked_bias", "position_ids")
OTHER_TASKS = ("Classification", "QuestionAnswering")


@dataclass(frozen=True)
class WeightDifferences:
    """Between a model and its files, by the names of weights; of those with another shape also the shapes, in the files
    and in the model."""

    missing: frozenset[str] = frozenset()
    mismatched: frozenset[tuple[str, tuple[int, ...], tuple[int, ...]]] = frozenset()
    unexpected: frozenset[str] = frozenset()

    @classmethod
    def of(cls, loading_info: Mapping[str, Iterable[Any]]) -> Self:
        """From what `from_pretrained(output_loading_info=True)` returns."""
        shapes = {(name, tuple(found), tuple(wanted)) for name, found, wanted in loading_info["mismatched_keys"]}
        missing, unexpected = loading_info["missing_keys"], loading_info["unexpected_keys"]
        return cls(frozenset(missing), frozenset(shapes), frozenset(unexpected))

    @property
    def drawn(self) -> frozenset[str]:
        """The weights that the files do not give."""
        return self.missing | {name for name, _, _ in self.mismatched}


@dataclass(frozen=True)
class WeightsJudgement:
    """`refusal` says what is wrong ("" if nothing is), `notes` what differs and is right."""

    refusal: str
    notes: list[str]
    has_other_shapes: bool


def judge(model: Any, differences: WeightDifferences) -> WeightsJudgement:
    head = _new_head(model, differences)
    # Of a part that the model does not have at all (a vision tower, another head, layers that predict tokens after the
    # next), or computed. Any other would change what the model computes.
    parts = {name for name in differences.unexpected if name.rpartition(".")[2] in COMPUTED}
    parts |= {
        each for each in differences.unexpected if _is_no_part(model, each) and _is_no_part(model.base_model, each)
    }
    # Tables of sines, which a model computes and some versions of transformers save.
    modules = {name: model.get_submodule(name.rpartition(".")[0]) for name in differences.missing}
    computed = {name for name, module in modules.items() if "Sinusoidal" in type(module).__name__}
    missing, unexpected = differences.missing - head - computed, differences.unexpected - parts
    shapes = [f"{name} {found} and not {wanted}" for name, found, wanted in sorted(differences.mismatched)]
    wrong, notes = [], []
    if missing:
        total = len(dict(model.named_parameters()))
        wrong.append(f"its files lack {counted(len(missing), 'weight')} of {total}: {_some(missing)}")
    if shapes:
        wrong.append(f"its files hold {counted(len(shapes), 'weight')} of another shape: {_some(shapes)}")
    if unexpected:
        strange = counted(len(unexpected), "tensor")
        wrong.append(f"its files hold {strange} that it has no place for: {_some(unexpected)}")
    if head:
        notes.append(notice_of("model.head", head=_some(head)))
    if parts:
        tops = {".".join(name.split(".")[:2]) for name in parts}
        notes.append(notice_of("model.left_out", parts=_some(tops), tensors=counted(len(parts), "tensor")))
    return WeightsJudgement("; ".join(wrong), notes, bool(shapes))


def refuse_or_note(judgement: WeightsJudgement, spec: TrainSpec, *, sharded: bool, alone: bool) -> list[str]:
    """What to print of a judgement. Raises UsageError on all ranks where one of them must refuse, as each node may have
    other files; a rank that is `alone` asks no other."""
    fix = CHECK_FILES
    # Adapters are merged into weights that are loaded anew.
    allowed = spec.allow_missing_weights and not spec.quantization
    if not spec.quantization:
        fix += f"; {FLAG} trains all the same, with random numbers for what they lack"
    if sharded and judgement.has_other_shapes:
        # transformers loads by `_load_from_state_dict` then, which refuses another shape, and only on rank 0.
        fix, allowed = f"{CHECK_FILES}; --zero 2 {FLAG} draws them at random", False
    flags = config_flags(spec)
    if flags and judgement.refusal:
        # A few drawn tensors in a trained model are noise; a model with fewer layers is a whole one.
        fix, allowed = f"leave out {flags}, or add --from-scratch", allowed and not judgement.has_other_shapes
    mine = "" if allowed else judgement.refusal
    refusals = [mine] if alone else all_gather_object(mine)
    rank = next((rank for rank, each in enumerate(refusals) if each), None)
    if rank is not None:
        where = "" if refusals[0] else f" on rank {rank}"
        raise UsageError(f"model {spec.model!r}{where}: {refusals[rank]}", fix=fix)
    return [*judgement.notes, *([f"{FLAG}: {judgement.refusal}"] if judgement.refusal else [])]


@contextmanager
def incomplete_refused(spec: TrainSpec) -> Iterator[None]:
    """Raise UsageError where the files lack a part of a weight that is put together as it is loaded, such as one expert
    of a layer. transformers raises RuntimeError, and names the weights in its log alone."""
    broken: list[str] = []
    original = modeling_utils.log_state_dict_report

    def report(*given: Any, **named: Any) -> None:
        broken.extend(getattr(named.get("loading_info"), "conversion_errors", None) or ())
        original(*given, **named)

    try:
        with replaced(modeling_utils, log_state_dict_report=report):
            yield
    except RuntimeError as error:
        if not broken:
            raise
        what = f"its files lack parts of {counted(len(broken), 'weight')}: {_some(broken)}"
        raise UsageError(f"model {spec.model!r}: {what}", fix=CHECK_FILES) from error


def _new_head(model: Any, differences: WeightDifferences) -> set[str]:
    """The weights of a head that the model was saved without, by what its config says of its making; only where that is
    all that is missing."""
    made_as = getattr(model.config, "architectures", None) or []
    base = model.base_model
    headless = {type(base).__name__} if base is not model else set()
    if not any(each in headless or any(task in each for task in OTHER_TASKS) for each in made_as):
        return set()
    prefix = f"{model.base_model_prefix}."
    if any(name.startswith(prefix) for name in differences.drawn):
        return set()
    return set(differences.missing)


def _is_no_part(start: Any, name: str) -> bool:
    module, owner = start, start
    for part in name.split("."):
        child = getattr(module, part, None)
        if isinstance(child, nn.Module):
            module = child
            owner = child if isinstance(child, PreTrainedModel) else owner
            continue
        if isinstance(module, nn.ModuleList) and part.isdigit():
            # Behind the last layer (DeepSeek-V3, GLM-4.5).
            return int(part) < len(module) + (getattr(owner.config, "num_nextn_predict_layers", None) or 0)
        if part in module._non_persistent_buffers_set:
            return True  # saved once, and computed by now (the positions of M2M100 and XGLM)
        # `bias` of an attention that consists of other modules was the causal mask (GPT-J, CodeGen).
        holds_none = next(module.parameters(recurse=False), None) is None and next(module.children(), None) is not None
        return isinstance(module, PreTrainedModel) or (holds_none and part in ("bias", "causal_mask"))
    # A buffer that is not saved any more; weights are never unexpected.
    return False


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - SHOWN:,} more" if len(ordered) > SHOWN else ""
    return ", ".join(ordered[:SHOWN]) + more
