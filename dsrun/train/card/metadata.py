"""The front matter of a model card: what the Hub reads of it (github.com/huggingface/hub-docs, modelcard.md)."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData, try_to_load_from_cache
from huggingface_hub.repocard_data import CardData
from yaml import YAMLError

from dsrun.hub.modelscope_cache import local_name
from dsrun.train.card.card_facts import CardFacts, hub_dataset, name_of

FILE = "README.md"
_LANGUAGE = re.compile(r"([a-z]{2,3})(?:[_-]\w+)?")  # en, ro_RO, eng_Latn
_HUB_METRICS = {"perplexity", "bleu", "chrf", "rouge", "exact_match"}


def metadata(facts: CardFacts, *, adapter: bool) -> ModelCardData:
    """The front matter, without what is not known."""
    spec = facts.spec
    given = [code for each in facts.sets.values() for code in (each.source_lang, each.target_lang, each.lang)]
    codes = [_LANGUAGE.fullmatch(each or "") for each in given]
    datasets = [name for each in facts.sets.values() if (name := hub_dataset(each))]
    known = {"deepspeed": facts.plan.deepspeed is not None, "lora": spec.lora}
    known |= {name: spec.task == name for name in ("dpo", "distill")}
    results = list(_results(facts))
    named = {"rouge" if each.metric_type.startswith("rouge") else each.metric_type for each in results}
    return ModelCardData(
        base_model=facts.base,
        library_name="peft" if adapter else "transformers",
        pipeline_tag=facts.pipeline,
        language=list(dict.fromkeys(code[1] for code in codes if code)) or None,
        datasets=list(dict.fromkeys(datasets)) or None,
        metrics=sorted(named & _HUB_METRICS) or None,
        tags=["dsrun", *(name for name, holds in known.items() if holds)],
        **_license(facts),
        **({"model_name": facts.name, "eval_results": results} if results else {}),
    )


def _license(facts: CardFacts) -> dict[str, str]:
    """The licence of the base model, where its card is on this machine."""
    spec = facts.spec
    if facts.base and spec.hub == "modelscope":
        card: str | None = str(Path(local_name(facts.base, "model", spec, os.environ)) / FILE)
    elif facts.base:
        card = try_to_load_from_cache(facts.base, FILE, cache_dir=spec.cache_dir, revision=spec.model_revision)
    else:
        card = str(Path(spec.model).expanduser() / FILE) if spec.model and not spec.from_scratch else None
    try:
        if not isinstance(card, str) or not Path(card).is_file():
            return {}
        found: CardData = ModelCard.load(card, ignore_metadata_errors=True).data
    except (OSError, ValueError, YAMLError):
        return {}
    names = ("license", "license_name", "license_link")
    return {name: value for name in names if isinstance(value := found.get(name), str)}


def _results(facts: CardFacts) -> Iterator[EvalResult]:
    for scores in facts.scores():
        spec = facts.sets.get(scores.set, facts.spec)
        files = ", ".join(name_of(each) for each in getattr(spec, f"{scores.split}_file"))
        dataset = hub_dataset(spec)
        for name, value in scores.values.items():
            yield EvalResult(
                task_type=facts.pipeline,
                # The Hub asks for a type of data that it does not have, too.
                dataset_type=dataset or "custom",
                dataset_name=scores.set or files or dataset or facts.data_name,
                # Results of one type, configuration and split are taken for those of one dataset, whatever its name.
                dataset_config=(None if files else spec.dataset_config) or scores.set or None,
                dataset_split=scores.split,
                metric_type=name,
                metric_value=value,
            )
