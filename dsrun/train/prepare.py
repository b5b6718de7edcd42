"""`python -m dsrun.train.prepare`: load and tokenise a run's data into the cache that training then finds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dsrun.recipe.files import check_files
from dsrun.recipe.resolve import resolve
from dsrun.train.console import Console
from dsrun.train.rank_context import explain_failure


def main(argv: Sequence[str]) -> int:
    console = Console(sys.stderr, terminal=sys.stderr.isatty())
    try:
        _prepare(argv, console)
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in argv:
            raise
        code, message = explain_failure(_interrupt_in(error) or error)
        console.print(f"error: {message}", style="red")
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
    # Quiet before the imports, or transformers advertises its frameworks.
    from transformers.utils import logging as transformers_logging

    from dsrun.recipe.recipe import phases
    from dsrun.train import model as models
    from dsrun.train.plan import data_request, prepare_and_report, with_demo

    transformers_logging.set_verbosity_error()
    recipe, _ = with_demo(recipe, notify=console.notice)
    config = models.load_config(recipe.spec)
    tokenizer = models.load_tokenizer(recipe.spec)
    task = models.decide_task(config, recipe.spec.task, recipe.spec.model)
    data = prepare_and_report(data_request(recipe, config, task, len(tokenizer), phases(recipe)), tokenizer, console)
    console.print(f"prepared {data.origin}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
