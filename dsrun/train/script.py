"""`Trainer`, for scripts with a model and data of their own: `dsrun train` as a class."""

import atexit
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from dsrun.demo.build_demo import DEMO_NAMES
from dsrun.errors import EXIT_RESUME, DsrunError, UsageError
from dsrun.hub.modelscope import fetch
from dsrun.launch.context import decide
from dsrun.launch.environment import worker_environment
from dsrun.machine.gpus import visible_gpus
from dsrun.recipe.preflight.files import check_files
from dsrun.recipe.resolved import worker_recipe
from dsrun.runs.folder import default_name
from dsrun.runs.heartbeat import HeartbeatWriter
from dsrun.system import variables
from dsrun.system.env import WorkerPlace, worker_from_env
from dsrun.system.host import cores
from dsrun.system.net import free_port
from dsrun.train.base.distributed import destroy_process_group, world_from_env
from dsrun.train.base.plan import Given
from dsrun.train.base.rank_context import RankContext, handler_from_env, is_supervised, show_stacks_in
from dsrun.train.base.refusals import notices, refusal
from dsrun.train.decide_plan import with_demo
from dsrun.train.run import BegunRun, begin, prepare_run, recorded
from dsrun.train.worker import conclude, console_of, keep_temporary_files_with_run, open_records, take_folder
from dsrun.zero.lint.config_check import refuse_errors


class Trainer:
    """Trains a model as `dsrun train` does: the same data order, loss, checkpoints and exact resuming.

    `model` is a name or folder, or a model of transformers, or a function that builds one, whose `config` must be given
    too: under ZeRO-3 it is called when each new parameter is sharded at once. `train`, `validation` and `test` are rows
    as in data files, or with input_ids and labels: a sequence of dictionaries or a datasets.Dataset. `settings` are the
    flags of `dsrun train` (`learning_rate=1e-4`, `zero=2`).

    An error ends the script with one line, a request to stop with a checkpoint and the exit code 75."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        config: Any = None,
        train: Any = None,
        validation: Any = None,
        test: Any = None,
        **settings: Any,
    ) -> None:
        show_stacks_in(None)
        # The Trainer's own lines are for logs, and the terminal is the script's.
        transformers_logging.disable_progress_bar()
        settings = {"log_level": "warning", **settings}
        launched = worker_from_env(os.environ)
        worker = launched or _this_process_alone(bool(settings.get("use_cpu")))
        os.environ.update(worker.variables())
        keep_temporary_files_with_run(os.environ)
        self._rank = worker.rank
        heart = HeartbeatWriter.from_environment(os.environ, worker.rank)
        self._context = RankContext(heart, handler_from_env(os.environ))
        self._console = console_of(worker.rank)
        self._begun: BegunRun | None = None
        with self._ending():
            self._context.stopping.install(worker.rank)
            splits = {"train": train, "validation": validation, "test": test}
            rows = {split: rows for split, rows in splits.items() if rows is not None}
            self._given = _given(model, tokenizer, config, rows)
            # An architecture stands for a model that has no name.
            named = {"model": model} if self._given.model is None else {"model_type": self._given.config.model_type}
            if not launched and variables.OUTPUT not in os.environ:
                settings = {"output": default_name(str(*named.values()), datetime.now()), **settings}
            lint = partial(refuse_errors, notify=self._console.notice)
            words = _words({**named, **settings})
            requested = worker_recipe(words, os.environ, world_size=worker.world_size, lint=lint)
            self._given.check(requested.spec)
            check_files(requested.spec, generation_config=requested.hf.get("generation_config"))
            for notice in requested.notices:
                self._console.notice(notice)
            self._recipe, self._folder = take_folder(requested, worker.rank, self._console)
            self._context.heart.enter("running")

    def train(self) -> None:
        """Train to the end, from the newest checkpoint of the run folder if there is one. A run that is asked to stop
        saves a checkpoint and ends here."""
        with self._ending():
            recipe, given = self._recipe, self._given
            if self._rank == 0:
                open_records(recipe, self._folder, self._console)
            title = recipe.spec.model or given.config.model_type
            hf = recipe.hf
            world = world_from_env(use_cpu=bool(hf.get("use_cpu")), ddp_timeout=hf.get("ddp_timeout"))
            self._context.heart.enter("loading")
            local_rank = int(os.environ["LOCAL_RANK"])
            fetch(recipe.spec, notify=self._console.notice, beat=self._context.heart.beat, local_rank=local_rank)
            if title in DEMO_NAMES or not given.rows:
                recipe, title = with_demo(recipe, notify=self._console.notice)
            atexit.register(destroy_process_group)
            parts = prepare_run(recipe, title, world, self._folder, self._console, context=self._context, given=given)
            with recorded(parts):
                self._begun = begin(parts)
                if not self._begun.train():
                    _leave()
            self._context.heart.enter("running")

    def save(self) -> Path:
        """Write the trained model to RUN/model, evaluate it, and mark the run as finished. Returns RUN/model."""
        with self._ending():
            if self._begun is None:
                raise UsageError("save() of Trainer comes after train()")
            with recorded(self._begun.parts):
                if not self._begun.finish():
                    _leave()
            self._context.heart.enter("running")
        return self._folder.model

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints."""
        return self._rank == 0

    @property
    def model(self) -> Any:
        """The model that is trained, once `train` has been called; under ZeRO-3 its parameters are sharded."""
        return None if self._begun is None else self._begun.trainer.model

    @property
    def metrics(self) -> dict[str, float]:
        """Those of the last evaluation; empty before one."""
        last = self._begun.trainer.last_metrics if self._begun else None
        return dict(last[1]) if last else {}

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Errors inside end this worker as they end one of `dsrun train`; those that are not dsrun's own with their
        traceback."""
        try:
            yield
        except _Left:
            raise
        except BaseException as error:
            code = conclude(error, self._rank, self._console, self._context, log=None)
            if code and not isinstance(error, DsrunError | SystemExit):
                raise
            raise SystemExit(code) from None


class _Left(SystemExit):
    """The run was asked to stop, and has saved."""


def _leave() -> None:
    # A supervisor makes 75 of it once all ranks have left.
    raise _Left(0 if is_supervised(os.environ) else EXIT_RESUME)


def _this_process_alone(use_cpu: bool) -> WorkerPlace:
    """A run of one rank, for a script that no launcher has started, in the environment that one would make."""
    topology = decide(nproc=1, visible_gpus=len(visible_gpus()), cores=cores(), use_cpu=use_cpu)
    for name, value in worker_environment(topology, os.environ, debug=False).items():
        if value is None:
            os.environ.pop(name)
        else:
            os.environ[name] = value
    return WorkerPlace(
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        master_addr="127.0.0.1",
        master_port=free_port(),
        source="torchrun",
    )


def _given(model: Any, tokenizer: Any, config: Any, rows: Mapping[str, Any]) -> Given:
    command = ("python", *sys.argv)
    if isinstance(model, str | os.PathLike):
        return Given(tokenizer=tokenizer, rows=rows, command=command)
    if tokenizer is None:
        raise UsageError("Trainer needs the tokenizer of a model that is not a name", fix="Trainer(model, tokenizer)")
    if hasattr(model, "config") and hasattr(model, "parameters"):
        return Given(model.config, lambda: model, tokenizer, rows, command, is_built=True)
    if not callable(model) or config is None:
        raise refusal("script.no_model", kind=type(model).__name__)
    return Given(config, model, tokenizer, rows, command)


def _words(settings: Mapping[str, Any]) -> list[str]:
    """Settings as the command line gives them."""
    words, elsewhere = [], notices("elsewhere")
    for name, value in settings.items():
        if name in elsewhere:
            raise UsageError(f"{name}= is not a setting of Trainer", fix=f"use {elsewhere[name]}")
        if value is None:
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, list | tuple):
            words += [flag, *map(str, value)] if value else []
        elif isinstance(value, dict):
            words.append(f"{flag}={json.dumps(value)}")
        else:
            words.append(f"{flag}={str(value).lower() if isinstance(value, bool) else value}")
    return words
