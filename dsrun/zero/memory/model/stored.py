"""The tensors of a model as transformers builds it, from the headers of its safetensors files.

The files have the names of published checkpoints and lack what a module has computed or shares; a test saves tiny
models of many families and compares."""

import re
from collections.abc import Mapping

from dsrun.datafiles import patterns_beside
from dsrun.errors import UsageError
from dsrun.models.families import family_of
from dsrun.models.folder import FoundModel
from dsrun.zero.memory.model.architecture import LayerWeight, ModelShapes, WeightKind
from dsrun.zero.memory.model.shapes import ModelSettings
from dsrun.zero.memory.model.widths import NAMES, architecture_of, leaf_of, part

Shapes = dict[str, tuple[int, ...]]

_PATTERNS = patterns_beside(__file__, "names.toml", table="stored")
_ORDER = patterns_beside(__file__, "names.toml", table="order")
_GATES, _UPS, _DOWNS = ("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")


def stored_architecture(found: FoundModel) -> ModelShapes | None:
    """The architecture that the headers of a model's files tell; None without files that hold this model's weights."""
    if not found.stored or found.quantised:  # packed tensors have other shapes than the weights they stand for
        return None
    config, text = ModelSettings(found.config), part(found.config, "decoder")
    stacked = _stacked(_parameters(found.stored, text))
    if stacked is None:
        return None
    shapes = _as_built(config, text, stacked)
    computed = family_of(config.plain("model_type", "")).computed_positions
    names = sorted(shapes, key=_order)
    weights = tuple(LayerWeight(name, shapes[name], kind_of(name, shapes[name], computed)) for name in names)
    try:
        architecture = architecture_of(found.config, weights)
    except UsageError:  # neither config nor tensors say what a model of that type has
        return None
    return architecture if _belongs(architecture, text) else None


def _is(kind: str, name: str) -> re.Match[str] | None:
    return _PATTERNS[kind].fullmatch(name)


def _order(name: str) -> list[tuple[int, str]]:
    """About the model's own order, by which ranks share the tensors out: files are sorted by name."""
    return [
        (next(place for place, known in enumerate(_ORDER.values()) if known.fullmatch(segment)), segment.zfill(6))
        for segment in name.split(".")
    ]


def _parameters(stored: Mapping[str, tuple[int, ...]], text: ModelSettings) -> Shapes:
    """Without buffers, and without the layers behind the last that predict further tokens, which are not loaded."""
    extra = text.number("num_nextn_predict_layers", default=0, least=0)
    last = text.number(*NAMES["layers"], default=1) if extra else None

    def is_loaded(name: str) -> bool:
        layer = _is("layer", name)
        return last is None or layer is None or int(layer[2]) < last

    kept = {name: shape for name, shape in stored.items() if is_loaded(name) and not _is("buffer", name)}
    return {name: shape for name, shape in kept.items() if len(shape) < 4 or not _is("mask", name)}


def _stacked(shapes: Shapes) -> Shapes | None:
    """Experts' matrices, which files hold one by one, stacked into two as transformers 5 keeps them in memory; None
    where the experts of a layer are not all alike."""
    stacked = {name: shape for name, shape in shapes.items() if not _is("expert", name)}
    experts: dict[str, dict[str, list[tuple[int, ...]]]] = {}
    for name, shape in shapes.items():
        if found := _is("expert", name):
            experts.setdefault(found[1], {}).setdefault(found[3].removesuffix(".weight"), []).append(shape)
    for path, tensors in experts.items():
        alike = {name: {*each} for name, each in tensors.items()}
        into_both = {shape for name in (*_GATES, *_UPS) for shape in alike.get(name, ())}
        counts = {len(each) for each in tensors.values()}
        if len(into_both) > 1 or len(counts) > 1 or any(len(each) > 1 or () in each for each in alike.values()):
            return None
        for name, each in tensors.items():
            out, *into = each[0]
            if name in (*_GATES, *_UPS):
                double = sum(other in tensors for other in (*_GATES, *_UPS))
                stacked[f"{path}.{'gate_up_proj' if double == 2 else 'up_proj'}"] = (len(each), double * out, *into)
            else:
                stacked[f"{path}.{'down_proj' if name in _DOWNS else name}"] = (len(each), out, *into)
    return stacked


def _as_built(config: ModelSettings, text: ModelSettings, shapes: Shapes) -> Shapes:
    """With the embeddings tied or not as the config says, and with positions that are computed."""
    family = family_of(config.plain("model_type", ""))
    ties = [each.config.get("tie_word_embeddings") for each in (config, text)]
    tied = next((bool(each) for each in ties if each is not None), None)
    tied = True if tied is None and family.ties_embeddings else tied
    heads = [name for name in shapes if _is("head", name) and len(shapes[name]) == 2]
    tables = [name for name in shapes if kind_of(name, shapes[name]) == "embedding"]
    if tied and any(shapes[name] in map(shapes.get, heads) for name in tables):
        shapes = {name: shape for name, shape in shapes.items() if name not in heads}
    if tied is False and not heads and tables and not family.unties_when_loaded:
        shapes = {**shapes, "lm_head.weight": max(shapes[name] for name in tables)}
    if tied is not False or family.unties_when_loaded:  # BART has a table for each side where they are not tied
        shared = next((name for name in tables if leaf_of(name) == "shared"), None)
        own = [name for name in tables if leaf_of(name) == "embed_tokens"]
        shapes = {name: shape for name, shape in shapes.items() if name not in own or shape != shapes.get(shared or "")}
    if family.computed_positions:
        rows = text.number("max_position_embeddings", default=1024)
        width = text.number(*NAMES["width"], default=1024)
        positions = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]
        shapes = {**shapes, **dict.fromkeys(positions, (rows, width))}
    return shapes


def kind_of(name: str, shape: tuple[int, ...], computed: bool = False) -> WeightKind:
    """What the module of that name is in transformers' models; `computed`: its table of positions is never trained."""
    if len(shape) < 2:
        return "vector"
    if not name.endswith(".weight") or len(shape) > 2 or _is("router", leaf_of(name)):
        return "experts"
    if _is("head", name):
        return "head"
    if _is("embedding", leaf_of(name)):
        return "frozen" if computed and leaf_of(name) == "embed_positions" else "embedding"
    return "linear"


def _belongs(architecture: ModelShapes, text: ModelSettings) -> bool:
    """Whether the files are of the model that the config describes: as wide, as deep, with as many tokens."""
    sides = {side for weight in architecture.tensors() for side in weight.shape}
    depth = text.optional(*NAMES["layers"])
    return (
        all((said := text.optional(*NAMES[name])) is None or said in sides for name in ("width", "rows"))
        and any(block.name[-1:].isdigit() for block in architecture.blocks)
        and (depth is None or depth in [each.layers for each in architecture.stacks])
    )
