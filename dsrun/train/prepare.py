"""`python -m dsrun.train.prepare`: load and tokenise a run's data into the cache that training then finds."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsrun.hub.modelscope import fetch
from dsrun.hub.reach import check_hub
from dsrun.recipe.preflight.files import check_inputs
from dsrun.recipe.preflight.packages import check_packages
from dsrun.recipe.resolve import resolve
from dsrun.runs.attempts import is_another
from dsrun.system.process.process_end import end
from dsrun.system.terminal.stderr import say
from dsrun.train.base.console import ERROR_STYLE, MARKS, Console, PlainTask, quiet_console
from dsrun.train.base.rank_context import explain_failure

if TYPE_CHECKING:
    from dsrun.runs.heartbeat import HeartbeatWriter
    from dsrun.train.base.plan import TrainingPlan
    from dsrun.train.data.data_request import DataRequest, PreparedData

logger = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    debug = "--debug" in argv
    with quiet_console("prepare", "checking the files", debug=debug) as console:
        try:
            _prepare(argv, console)
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                raise
            logger.error("prepare failed", exc_info=error)
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
    check_inputs(recipe)
    check_packages(recipe)
    console.print(f"preparing the data for {recipe.spec.model or recipe.spec.model_type or 'the model'}")
    check_hub(recipe, os.environ)
    say("loading transformers and datasets")
    from dsrun.train.base.plugin import load_plugin
    from dsrun.train.data.data_request import data_request
    from dsrun.train.data.encoding.tokenizer import load_tokenizer
    from dsrun.train.data.overview import data_facts, data_rows
    from dsrun.train.decide_plan import with_demo
    from dsrun.train.model.load import decide_task, load_config

    say("preparing the data")
    plugin = load_plugin(recipe.spec)
    fetch(recipe.spec, notify=console.notice)
    recipe, _ = with_demo(recipe, notify=console.notice)
    config = load_config(recipe.spec)
    tokenizer = load_tokenizer(recipe.spec)
    task = decide_task(config, recipe.spec.task, recipe.spec.model)
    request = data_request(recipe, config, task, tokens=len(tokenizer), plugin=plugin)
    data = prepare_and_report(request, tokenizer, console)
    show_samples(data, tokenizer, console)
    console.print("prepared:")
    console.rows(data_rows(data, data_facts(data, global_batch=recipe.spec.global_batch_size)))


def prepare_for_plan(plan: TrainingPlan, tokenizer: Any, console: Console, heart: HeartbeatWriter) -> PreparedData:
    """The data of a run, from the cache where `dsrun prepare` or another rank has made it."""
    from dsrun.train.data.data_request import data_request, given_sources

    request = data_request(
        plan.recipe,
        plan.config,
        plan.task,
        tokens=len(tokenizer),
        plugin=plan.plugin,
        sources=given_sources(plan.given.rows),
    )
    heart.enter("tokenising")
    data = prepare_and_report(request, tokenizer, console, beat=heart.beat)
    if "train" in plan.phases and plan.world.is_main and not is_another(os.environ):
        show_samples(data, tokenizer, console)
    heart.enter("loading")
    return data


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
    return data


def show_samples(data: PreparedData, tokenizer: Any, console: Console) -> None:
    """Print a few samples of the training data with what is learned of them."""
    from dsrun.train.data.preview import preview

    samples = preview(data, tokenizer)
    if samples:
        where = "in green" if console.coloured else "in " + " ".join(MARKS)
        console.print(f"samples; what is learned is {where}:")
    for parts in samples:
        console.marked(parts)


if __name__ == "__main__":
    end(main(sys.argv[1:]))  # taking torch apart takes seconds
