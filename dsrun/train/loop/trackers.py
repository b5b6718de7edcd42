"""Experiment trackers beside a run, which goes on without one that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from dsrun.errors import one_line

logger = logging.getLogger(__name__)


class Tracker(TrainerCallback):
    """A tracker's callback until it raises: that is reported once, and it is not called again."""

    def __init__(self, name: str, callback: TrainerCallback, notify: Callable[[str], None]) -> None:
        self.name = name
        self.callback = callback
        self.notify = notify
        self.has_failed = False

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        event = getattr(self.callback, name)

        def call(args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if self.has_failed:
                return None
            try:
                return event(args, state, control, **kwargs)
            except Exception as error:
                logger.exception("tracker %s failed in %s", self.name, name)
                self.has_failed = True
                self.notify(
                    f"{self.name} failed and is left out from here on: {type(error).__name__}: {one_line(error)}"
                )
                return None

        return call


def guard_trackers(handler: Any, notify: Callable[[str], None]) -> None:
    """Put a `Tracker` around each tracker's callback of a Trainer's CallbackHandler."""
    names = {kind: name for name, kind in INTEGRATION_TO_CALLBACK.items()}
    handler.callbacks = [
        Tracker(names[type(each)], each, notify) if type(each) in names else each for each in handler.callbacks
    ]
