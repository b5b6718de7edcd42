"""The model of a first run: a folder, a Hub name or a demo, and what its config says."""

import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dsrun.cli.init.found import SHOWN, cached_models, model_folders
from dsrun.cli.init.interview import QUESTIONS, InitInterview, question
from dsrun.demo.models import DEMO_T5, TASKS, model_config
from dsrun.errors import DsrunError, MissingError, UsageError, nearest
from dsrun.hub.reach import other_sources
from dsrun.models.families import SEQ2SEQ, model_type_of
from dsrun.models.folder import find, has_weights
from dsrun.recipe.preflight.files import check_files, is_path, refuse_no_name
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.terminal.stderr import print_note
from dsrun.zero.memory.model.architecture import ModelShapes
from dsrun.zero.memory.model.count import count


@dataclass(frozen=True, kw_only=True)
class InitModel:
    """A model as it is named in run.yaml.

    `config` is its config.json, None where it is not on this machine; `architecture` is what the plan needs to know,
    None where only transformers can tell."""

    name: str
    source: str
    from_scratch: bool
    config: dict[str, Any] | None
    architecture: ModelShapes | None

    @property
    def is_demo(self) -> bool:
        """Whether it is one of dsrun's own, which come with data and settings."""
        return self.name in TASKS

    @property
    def kind(self) -> str | None:
        """Its model type, by config or by name."""
        return str(self.config.get("model_type")) if self.config else model_type_of(self.name)

    @property
    def task(self) -> str | None:
        """What its config says that it learns; None without a config."""
        if self.name in TASKS:
            return TASKS[self.name]
        if self.config is None:
            return None
        both = self.architecture.seq2seq if self.architecture else self.kind in SEQ2SEQ
        return "seq2seq" if self.config.get("is_encoder_decoder", both) else "causal-lm"


def ask_model(interview: InitInterview, given: dict[str, Any]) -> InitModel:
    """Ask for the model, and look at its config where that is on this machine."""
    local = [*model_folders(Path.cwd()), *islice(cached_models(os.environ), SHOWN)][:SHOWN]
    scratch = bool(given["from_scratch"])
    asked = question(
        "--model",
        lambda text: _check(text, from_scratch=scratch),
        choices=[*local, *QUESTIONS["--model"]["choices"]],
        default=local[0][0] if local else DEMO_T5,
        why=f"found: {local[0][1]}" if local else "the demo, as no model is in this folder or in the Hub's cache",
    )
    found = interview.answer(asked, given["model"])
    name, config = found.value
    if not scratch and name not in TASKS and is_path(name) and not has_weights(Path(name).expanduser()):
        scratch = True
        print_note(f"{name} has no weights: it is trained from scratch, from its config")
    if config is None:
        offline = os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE")
        fetched = f"HF_HUB_OFFLINE forbids to download it ({other_sources()})" if offline else "the run downloads it"
        print_note(f"{name} is not on this machine: {fetched}, and plans its memory when it starts")
    architecture = None
    if config and name not in TASKS:
        with suppress(DsrunError):  # a family that only transformers can count is counted when the run starts
            architecture = count(find(name), meta=False, from_scratch=scratch).architecture
    return InitModel(name=name, source=found.source, from_scratch=scratch, config=config, architecture=architecture)


def _check(name: str, *, from_scratch: bool) -> tuple[str, dict[str, Any] | None]:
    """The name, and its config where that is on this machine. Raises UsageError for what cannot be trained."""
    if name in TASKS:
        if from_scratch:
            raise UsageError(f"--from-scratch: {name} is always trained from scratch", fix="leave it out")
        return name, model_config(name)
    if not is_path(name):
        return name, _of_the_hub(name)
    # A folder without weights is trained from its config.
    bare = Path(name).expanduser().is_dir() and not has_weights(Path(name).expanduser())
    check_files(TrainSpec(model=name, from_scratch=from_scratch or bare))
    return name, find(name).config


def _of_the_hub(name: str) -> dict[str, Any] | None:
    near = nearest(name, [*TASKS, *(entry.name for entry in Path.cwd().iterdir() if entry.is_dir())])
    if near:
        raise UsageError(f"--model {name} does not exist", fix=f"did you mean {near}?")
    refuse_no_name(name)
    try:
        return find(name).config
    except MissingError:
        return None
