"""Whether files and model belong together: names, shapes and dtypes, what loading gives, how many parameters there are,
and whether DeepSpeed's configuration is for the model as it is."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from dsrun.errors import MissingError, UsageError, one_line
from dsrun.findings.finding import Finding, finding_of
from dsrun.models.families import family_of
from dsrun.models.folder import FoundModel, find
from dsrun.models.headers import read_header
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.process.scratch import scratch_folder
from dsrun.train.certify import small
from dsrun.train.certify.subject import CertifySubject, named_tensors
from dsrun.train.loop.engine import configuration, hidden_size
from dsrun.train.model.build_model import build, compared
from dsrun.train.model.load import decide_task, load_config
from dsrun.train.model.loaded_weights import judge
from dsrun.train.model.zero_auto import tensors, without_storage
from dsrun.zero.lint.config_check import check
from dsrun.zero.memory.model.architecture import LayerWeight
from dsrun.zero.memory.model.count import as_loaded, count

_BUFFERS = 1e-3
"""Share of the parameters by which two counts may differ."""


def stored(subject: CertifySubject) -> Iterator[Finding]:
    """The real files against the class that is trained, which is built without storage."""
    found = subject.found
    if not any((found.folder / name).is_file() for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)):
        return
    if found.quantised:
        yield finding_of("stored.packed", how=found.quantised, where=str(found.folder))
        return
    spec = subject.spec(found.folder)
    config = load_config(spec)
    try:
        model, differences = compared(spec, config, decide_task(config, "auto", spec.model))
    except (UsageError, SafetensorError) as error:
        yield finding_of("stored.unread", error=getattr(error, "message", one_line(error)), where=str(found.folder))
        return
    judgement = judge(model, differences)
    kind = type(model).__name__
    if judgement.refusal:
        yield finding_of("stored.unlike", kind=kind, why=judgement.refusal, where=str(found.folder))
        return
    headers = [read_header(file) for file in found.folder.glob("*.safetensors")]
    dtypes = Counter(dtype for each in headers for dtype, _ in each.values())
    in_files = ", ".join(f"{number:,} {dtype}" for dtype, number in dtypes.most_common())
    yield finding_of("stored.fit", tensors=in_files, kind=kind)


def loaded(subject: CertifySubject) -> Iterator[Finding]:
    """The small model as training loads it, saved, and loaded again.

    None of its weights is one number throughout (small.py), and all are the same however often they are loaded, unless
    the files did not give them."""
    try:
        model, again = (_loaded(subject, seed) for seed in (1, 2))
    except UsageError as error:
        yield finding_of("loaded.refused", why=str(error))
        return
    weights, built = named_tensors(model), torch.load(subject.built)
    matrices = ((name, each) for name, each in model.named_parameters() if each.numel() > 1)
    wrong = {name for name, each in matrices if bool((each == each.flatten()[0]).all())}
    own = {name: each for name, each in weights.items() if name in built}
    wrong, how = wrong | _others(weights, named_tensors(again)) | _others(own, built), "drawn"
    if not wrong:
        wrong, how = _others(weights, named_tensors(_saved(model))), "changed"
    if wrong:
        yield finding_of(f"loaded.{how}", number=len(wrong), weights=len(weights), first=min(wrong))
    else:
        yield finding_of("loaded.same", weights=len(weights))


def tied(subject: CertifySubject) -> Iterator[Finding]:
    """Weights that are one by the config are one tensor once loaded, and after a save too; others are not."""
    model = _loaded(subject, 1)
    stored = json.loads((subject.small / "config.json").read_text(encoding="utf-8"))
    unties = family_of(model.config.model_type).unties_when_loaded and stored.get("tie_word_embeddings") is False
    pairs = {} if unties else model.get_expanded_tied_weights_keys(all_submodels=True)
    for how, each in (("loaded", model), ("saved", _saved(model))):
        apart = [pair for pair in pairs.items() if each.get_parameter(pair[0]) is not each.get_parameter(pair[1])]
        if apart:
            (target, source), *_ = apart
            yield finding_of(f"tied.apart_{how}", target=target, source=source)
            return
        head, table = each.get_output_embeddings(), each.get_input_embeddings()
        if head is not None and head.weight is table.weight and (unties or not each.config.tie_word_embeddings):
            yield finding_of(f"tied.one_{how}")
            return
    yield finding_of("tied.as_said", names=", ".join(sorted(pairs))) if pairs else finding_of("tied.none")


def counted(subject: CertifySubject) -> Iterator[Finding]:
    """As the plan before training counts the real model, unless it knows neither files nor family, and the small one by
    its files, against the class without storage."""
    fine: list[Finding] = []
    trusted = subject.request.trust_remote_code
    cut = AutoConfig.from_pretrained(subject.small, trust_remote_code=trusted)
    for found, config in ((subject.found, subject.config), (find(str(subject.small)), cut)):
        try:
            plan = count(found, meta=False)
        except MissingError:
            continue
        planned, has = plan.architecture.parameters, _elements(found, config, trusted)
        # Files also hold buffers of a few numbers a layer.
        if abs(planned - has) > _BUFFERS * has:
            yield finding_of("counted.differs", planned=planned, how=plan.how, has=has, where=str(found.folder))
            return
        variant = "equal" if found is subject.found else "small"
        fine.append(finding_of(f"counted.{variant}", planned=planned, how=plan.how, has=has))
    yield from fine[:1]


def _elements(found: FoundModel, config: Any, trusted: bool) -> int:
    """The parameters of a model as its class has them."""
    whole = without_storage(config, small.auto_class(config), trust_remote_code=trusted)
    own = tuple(LayerWeight(name, tuple(shape), kind) for name, shape, kind in tensors(whole))  # type: ignore[arg-type]
    return sum(each.elements for each in as_loaded(found, own, from_scratch=False))


def _loaded(subject: CertifySubject, seed: int) -> Any:
    """What training begins with; where the files do not give all weights, drawn by `seed`."""
    torch.manual_seed(seed)
    spec = subject.spec(subject.small)
    config = load_config(spec)
    return build(spec, config, decide_task(config, "auto", spec.model), seed=seed, alone=True)


def _saved(model: Any) -> Any:
    """The model after a save, loaded by its own class."""
    with scratch_folder("dsrun-certify-") as folder:
        model.save_pretrained(folder)
        return type(model).from_pretrained(folder, dtype=model.dtype)


def _others(weights: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """The names of weights that the other lacks, or has otherwise."""
    return {name for name, each in weights.items() if name not in other or not torch.equal(each, other[name])}


def deepspeed(subject: CertifySubject) -> Iterator[Finding]:
    stages = [stage for stage in subject.request.stages if stage]
    problems = []
    for stage in stages:
        config = configuration(TrainSpec(model=subject.request.model, zero=str(stage)), {}, hidden_size(subject.config))
        found = check(json.dumps(config), file=f"ZeRO-{stage}", target="trainer", model_type=subject.config.model_type)
        problems += [each for each in found if each.level == "error"]
    yield from problems
    if stages and not problems:
        yield finding_of("deepspeed.accepted", stages=" and ".join(map(str, stages)))
