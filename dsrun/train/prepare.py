"""`python -m dsrun.train.prepare`: load and tokenise a run's data into the cache that training then finds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsrun.hub.modelscope import fetch
from dsrun.hub.reach import check_hub
from dsrun.recipe.preflight.files import check_files
from dsrun.recipe.preflight.packages import check_packages
from dsrun.recipe.recipe import Recipe, evaluation_is_requested, phases
from dsrun.recipe.resolve import resolve
from dsrun.system.log_format import is_json
from dsrun.train.console import ERROR_STYLE, MARKS, Console, PlainTask
from dsrun.train.rank_context import explain_failure

if TYPE_CHECKING:
    from dsrun.train.data.reading.sources import Sources
    from dsrun.train.data.request import DataRequest, PreparedData
    from dsrun.train.model.load import Task
    from dsrun.train.plugin import LoadedPlugin


def main(argv: Sequence[str]) -> int:
    console = Console(sys.stderr, terminal=sys.stderr.isatty(), as_json=is_json())
    try:
        _prepare(argv, console)
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in argv:
            raise
        code, message = explain_failure(_interrupt_in(error) or error)
        console.print(f"error: {message}", style=ERROR_STYLE)
        return code
    return 0


def _interrupt_in(error: BaseException | None) -> BaseException | None:
    """The Ctrl-C at the bottom of it: `Dataset.map` waits for its processes then, and raises TimeoutError."""
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def _prepare(argv: Sequence[str], console: Console) -> None:
    recipe = resolve(argv, Path.cwd())
    for notice in recipe.notices:
        console.notice(notice)
    check_files(recipe.spec, generation_config=recipe.hf.get("generation_config"))
    check_packages(recipe)
    check_hub(recipe, os.environ)
    # Quiet before the imports, or transformers advertises its frameworks.
    from transformers.utils import logging as transformers_logging

    from dsrun.train.model import load as models
    from dsrun.train.plan import with_demo
    from dsrun.train.plugin import load_plugin

    transformers_logging.set_verbosity_error()
    plugin = load_plugin(recipe.spec)
    fetch(recipe.spec, notify=console.notice)
    recipe, _ = with_demo(recipe, notify=console.notice)
    config = models.load_config(recipe.spec)
    tokenizer = models.load_tokenizer(recipe.spec)
    task = models.decide_task(config, recipe.spec.task, recipe.spec.model)
    request = data_request(recipe, config, task, tokens=len(tokenizer), wanted=phases(recipe), plugin=plugin)
    data = prepare_and_report(request, tokenizer, console)
    show_samples(data, tokenizer, console)
    console.print(f"prepared {data.origin}")


def prepare_and_report(
    request: DataRequest, tokenizer: Any, console: Console, *, beat: Callable[[], None] = lambda: None
) -> PreparedData:
    """Load and tokenise the data, telling the user what is worth knowing about it; `beat` is a sign of life."""
    from dsrun.train.data.mixture import preparation_of

    task = PlainTask(console, "tokenising")

    def progress(_split: str, done: int, total: int) -> None:
        beat()
        task.update(done, total)

    data = preparation_of(request)(request, tokenizer, notify=console.notice, progress=progress)
    for notice in data.notices:
        console.notice(notice)
    for split, cut in data.truncation.items():
        if cut.cut:
            console.notice(f"{split}: {cut.sentence()}")
    return data


def show_samples(data: PreparedData, tokenizer: Any, console: Console) -> None:
    """Print a few samples of the training data with what is learned of them."""
    from dsrun.train.data.preview import preview

    samples = preview(data, tokenizer)
    if samples:
        where = "in green" if console.coloured else "in " + " ".join(MARKS)
        console.print(f"samples; what is learned is {where}:")
    for parts in samples:
        console.marked("  ", parts)


def data_request(
    recipe: Recipe,
    config: Any,
    task: Task,
    *,
    tokens: int,
    wanted: frozenset[str],
    plugin: LoadedPlugin | None,
    sources: Sources | None = None,
) -> DataRequest:
    """What is asked of the data; `dsrun prepare` asks for the same, so both find the same cache."""
    from dsrun.train.data.request import DataRequest

    text = config.get_text_config()
    return DataRequest(
        spec=recipe.spec,
        task=task,
        model_type=config.model_type,
        max_positions=getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None),
        vocab_size=max(text.vocab_size, tokens),
        splits=wanted,
        required=frozenset({"validation"}) if evaluation_is_requested(recipe) else frozenset(),
        plugin=plugin,
        sources=sources,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
