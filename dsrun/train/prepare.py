"""`python -m dsrun.train.prepare`: load and tokenise a run's data into the cache that training then finds; with --rows
and a JSON object before the flags, show rows of it for `dsrun data`."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.markup import escape

from dsrun.hub.modelscope import fetch
from dsrun.hub.reach import check_hub
from dsrun.recipe.mixture import naming, specs_of
from dsrun.recipe.preflight.bad_rows import REASONS
from dsrun.recipe.preflight.files import check_inputs
from dsrun.recipe.resolve import resolve
from dsrun.recipe.trackers import check_packages
from dsrun.runs.attempts import is_another
from dsrun.system.files import replacing
from dsrun.system.process.process_end import end
from dsrun.system.terminal.display import printable, terminal_width
from dsrun.system.terminal.stderr import say, writing
from dsrun.train.base.console import ERROR_STYLE, MARKS, Console, PlainTask, quiet_console
from dsrun.train.base.rank_context import explain_failure

if TYPE_CHECKING:
    from dsrun.recipe.recipe import Recipe
    from dsrun.runs.heartbeat import HeartbeatWriter
    from dsrun.train.base.plan import TrainingPlan
    from dsrun.train.data.data_request import DataRequest, PreparedData

logger = logging.getLogger(__name__)


def main(argv: Sequence[str], name: str, work: Callable[[Recipe, Console], None]) -> int:
    """Do the work of the command `name` on the recipe of the flags; returns its exit code."""
    debug = "--debug" in argv
    with quiet_console(name, "checking the files", debug=debug) as console:
        try:
            recipe = resolve(argv, Path.cwd())
            for notice in recipe.notices:
                console.notice(notice)
            work(recipe, console)
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                raise
            logger.error("%s failed", name, exc_info=error)
            code, message = explain_failure(_interrupt_in(error) or error)
            console.print(f"error: {message}", style=ERROR_STYLE)
            return code
    return 0


def _interrupt_in(error: BaseException | None) -> BaseException | None:
    """The Ctrl-C at the bottom of it: `Dataset.map` waits for its processes then, and raises TimeoutError."""
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def _prepare(recipe: Recipe, console: Console) -> None:
    check_inputs(recipe)
    console.print(f"preparing the data for {recipe.spec.model or recipe.spec.model_type or 'the model'}")
    recipe, request, tokenizer = request_of(recipe, console)
    from dsrun.train.data.overview import data_facts, data_rows

    say("preparing the data")
    data = prepare_and_report(request, tokenizer, console)
    show_samples(data, tokenizer, console, recipe.spec.show)
    console.print("prepared:")
    console.rows(data_rows(data, data_facts(data, global_batch=recipe.spec.global_batch_size)))


def request_of(recipe: Recipe, console: Console) -> tuple[Recipe, DataRequest, Any]:
    """The recipe with the demo's values where it names one, what it asks of the data, and the tokenizer. Loads
    transformers, and no weights."""
    check_packages(recipe)
    check_hub(recipe, os.environ)
    say("loading transformers and datasets")
    from dsrun.train.base.plan import load_plugin
    from dsrun.train.data.data_request import data_request
    from dsrun.train.data.encoding.tokenizer import load_tokenizer
    from dsrun.train.decide_plan import with_demo
    from dsrun.train.model.load import decide_task, load_config

    plugin = load_plugin(recipe.spec)
    fetch(recipe.spec, notify=console.notice)
    recipe, _ = with_demo(recipe, notify=console.notice)
    config = load_config(recipe.spec)
    tokenizer = load_tokenizer(recipe.spec)
    task = decide_task(config, recipe.spec.task, recipe.spec.model)
    return recipe, data_request(recipe, config, task, tokens=len(tokenizer), plugin=plugin), tokenizer


def prepare_for_plan(plan: TrainingPlan, tokenizer: Any, console: Console, heart: HeartbeatWriter) -> PreparedData:
    """The data of a run, from the cache where `dsrun prepare` or another rank has made it."""
    from dsrun.train.data.data_request import data_request, given_sources

    rows, tokens = given_sources(plan.given.rows), len(tokenizer)
    request = data_request(plan.recipe, plan.config, plan.task, tokens=tokens, plugin=plan.plugin, sources=rows)
    heart.enter("tokenising")
    data = prepare_and_report(request, tokenizer, console, beat=heart.beat)
    if "train" in plan.phases and plan.world.is_main and not is_another(os.environ):
        show_samples(data, tokenizer, console, plan.recipe.spec.show)
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


def show_samples(data: PreparedData, tokenizer: Any, console: Console, count: int) -> None:
    """Print so many samples of the training data with what is learned of them."""
    from dsrun.train.data.overview import preview

    samples = preview(data, tokenizer, count)
    if samples:
        where = "in green" if console.coloured else "in {1} {2}".format(*MARKS["learned"])
        console.print(f"samples; what is learned is {where}:")
    for parts in samples:
        console.marked(parts)


def _show_rows(options: dict[str, Any], file: TextIO, recipe: Recipe, console: Console) -> None:
    """Write the rows that `dsrun data` asks for, as text or JSON into `file`, or as a page."""
    model = recipe.spec.model or recipe.spec.model_type
    console.print(f"reading rows as {model or 'the model'} learns them")
    recipe, request, tokenizer = request_of(recipe, console)
    from dsrun.train.data.reading.row_lookup import RowLookup

    say("looking up the rows")
    template = bool(getattr(tokenizer, "chat_template", None))
    known = {"class": type(tokenizer).__name__, "tokens": len(tokenizer), "chat_template": template}
    answer: dict[str, Any] = {"version": 1, "model": model, "tokenizer": known, "split": options["split"], "sets": []}
    for name, spec in specs_of(recipe.spec).items():
        with naming(name):
            lookup = RowLookup(replace(request, spec=spec), tokenizer, console.notice, lambda *_: None)
            answer["sets"].append({"name": name, **lookup.find(options["split"], options["rows"])})
        for notice in filter(None, lookup.notices):
            console.notice(notice)
    if options["html"]:
        with replacing(Path(options["html"]).resolve()) as page:
            page.write_text(rendered("rows.html.j2", answer), encoding="utf-8", errors="backslashreplace")
    text = options["html"] and f"{options['html']}\n"
    if options["form"] == "json":
        text = json.dumps(answer, indent=2) + "\n"
    with writing(), suppress(BrokenPipeError, SystemExit):  # the latter is what rich makes of it
        if text:
            file.write(text)
        else:
            out = Console(file, width=terminal_width(file))
            out.markup(rendered("rows.txt.j2", answer, tokens=options["tokens"], coloured=out.coloured))
        file.flush()


def rendered(name: str, answer: dict[str, Any], **more: Any) -> str:
    """Rows as a page, or as text with the markup of rich."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("data")),
        autoescape=name.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = lambda text: escape(printable(text, keep="\t\n"))
    environment.filters["runs"] = partial(groupby, key=itemgetter("state"))
    return environment.get_template(name).render(answer, marks=MARKS, reasons=REASONS, **more)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rows"]:
        # Libraries may print on stdout, which is the product's.
        product = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
        end(main(sys.argv[3:], "data", partial(_show_rows, json.loads(sys.argv[2]), product)))
    end(main(sys.argv[1:], "prepare", _prepare))  # taking torch apart takes seconds
