"""The push of a finished run's model to the Hugging Face Hub, and whether it will be possible, before training."""

import shlex
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dsrun.errors import MissingError, UsageError, one_line
from dsrun.hub.reach import CAUSE
from dsrun.recipe.recipe import Recipe
from dsrun.runs.attempts import is_another
from dsrun.runs.folder import RunFolder
from dsrun.system.terminal.secrets import without_tokens

FLAG = "--push_to_hub"
AFTERWARDS = "leave it out and upload the model afterwards: hf upload NAME RUN/model"
# Far below what a rank may be silent outside of its steps (SHORTEST_ELSEWHERE_S in launch/supervisor/watchdog.py).
_BEAT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class HubRepository:
    """A model repository of the Hub. `token` None: that of the environment or of `hf auth login`."""

    name: str
    token: str | None
    private: bool | None
    revision: str | None

    @classmethod
    def wanted(cls, recipe: Recipe, run: Path) -> Self | None:
        """Where the model of a run in the folder `run` is to be pushed; None: nowhere."""
        hf = recipe.hf
        if not hf.get("push_to_hub"):
            return None
        name = hf.get("hub_model_id") or run.absolute().name
        return cls(
            name=name, token=hf.get("hub_token"), private=hf.get("hub_private_repo"), revision=hf.get("hub_revision")
        )

    def check_settings(self) -> None:
        """Raise UsageError for a name that the Hub does not take and where offline mode forbids a push, MissingError
        without an access token. Asks nobody."""
        from huggingface_hub import constants, get_token
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        if constants.HF_HUB_OFFLINE:
            raise UsageError(f"{FLAG}: HF_HUB_OFFLINE is set", fix=f"unset it, or {AFTERWARDS}")
        if not (self.token or get_token()):
            what = f"{FLAG} needs an access token"
            raise MissingError(what, fix="`hf auth login`, the variable HF_TOKEN, or --hub_token", cause=CAUSE)
        try:
            validate_repo_id(self.name)
        except HFValidationError as error:
            raise UsageError(f"--hub_model_id {self.name}: {one_line(error)}", fix="ORGANISATION/NAME") from error

    def create(self) -> None:
        """Make the repository, unless it is there. Raises MissingError where the Hub cannot be reached or does not let
        this token write to it."""
        try:
            api = self._api()
            name = api.create_repo(self.name, private=self.private, exist_ok=True).repo_id
            # Of a repository that is there, create_repo asks only whether it can be read.
            api.auth_check(name, write=True)
            if self.revision:
                api.create_branch(name, branch=self.revision, exist_ok=True)
        except Exception as error:
            raise MissingError(f"{FLAG}: {_reason(error)}", fix=AFTERWARDS, cause=CAUSE) from error

    def push(self, folder: Path, *, beat: Callable[[], None]) -> str:
        """Upload the content of `folder` in one commit; returns its address. `beat` is called every few seconds.

        Raises MissingError where that fails."""
        try:
            api = self._api()
            name = api.create_repo(self.name, private=self.private, exist_ok=True).repo_id
            commit = api.upload_folder(
                repo_id=name,
                folder_path=folder,
                revision=self.revision,
                commit_message="Model trained with dsrun",
                # In a thread, as this one has to give signs of life.
                run_as_future=True,
            )
            while not wait([commit], timeout=_BEAT_S).done:
                beat()
            return str(commit.result().commit_url)
        except Exception as error:
            what = f"the run is finished, but its model was not pushed: {_reason(error)}"
            raise MissingError(what, fix=f"push it again: {self.upload_command(folder)}", cause=CAUSE) from error

    def upload_command(self, folder: Path) -> str:
        """What a user types to push `folder` by hand."""
        more = ["--private"] if self.private else []
        more += ["--revision", self.revision] if self.revision else []
        return shlex.join(["hf", "upload", self.name, str(folder), *more])

    def _api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi(token=self.token)


def check_push(recipe: Recipe, run: Path, environ: Mapping[str, str]) -> None:
    """Where the model is to be pushed in the end: raise UsageError or MissingError where that cannot work.

    A requeued job goes on training, whether the Hub can be reached at the moment or not."""
    repository = HubRepository.wanted(recipe, run)
    if repository is not None:
        repository.check_settings()
        if not is_another(environ):
            repository.create()


def final_folder(recipe: Recipe, run: RunFolder) -> Path:
    """What of a run is pushed: of a LoRA run the adapter, as the base model has its own repository."""
    return run.adapter if recipe.spec.lora else run.model


def _reason(error: Exception) -> str:
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        said = error.server_message or error.response.reason_phrase
        return without_tokens(f"the Hub answered {error.response.status_code}: {' '.join(said.split())}")
    return without_tokens(f"the Hub cannot be reached: {one_line(error)}")
