"""What `dsrun render-slurm` renders: the program and the options of run.yaml."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsrun.cli.output import print_note
from dsrun.cli.run_job import batch_of
from dsrun.errors import UsageError
from dsrun.recipe.files import check_files
from dsrun.recipe.recipe import Recipe
from dsrun.recipe.resolve import resolve
from dsrun.recipe.runfile import read_run_file, read_section
from dsrun.recipe.trackers import check_packages
from dsrun.slurm.render.environment import uses_own_python, workers
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.render.program import Program, any_program, train_program
from dsrun.slurm.render.spec import Given, given_key

RUN_FILE = "run.yaml"
DEMO = ("--model", "demo-t5", "--zero", "2")
# The shapes of the Hub's, OpenAI's and GitHub's tokens. A W&B key looks like a git commit.
_TOKEN = re.compile(r"hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}")


@dataclass(frozen=True, kw_only=True)
class RenderedProgram:
    """What a script runs: the program, and the run.yaml whose `slurm:` section applies, as the user wrote its path.

    `recipe` is that of dsrun's own training.
    """

    program: Program
    config: str | None
    recipe: Recipe | None = None


def find_job(words: Sequence[str], config: str | None, cwd: Path) -> RenderedProgram:
    """What runs: the words after `--`, else the run file, else the demo. Raises UsageError for wrong flags."""
    here = RUN_FILE if (cwd / RUN_FILE).is_file() else None
    if tuple(words[:2]) == ("dsrun", "train"):
        words = words[1:]
    if words and words[0] == "train":
        return _train(words[1:], config or here, cwd)
    if words:
        _refuse_tokens(words)
        return RenderedProgram(program=any_program(words), config=config or here)
    if config or here:
        name = str(config or here)
        _refuse_no_training(name, cwd)
        print_note(f"no command after --: the job runs {name}")
        return _train(["--config", str((cwd / name).absolute())], name, cwd)
    print_note(f"no command after --, and no {RUN_FILE} here: the job trains the demo")
    return _train(DEMO, None, cwd)


def _refuse_no_training(name: str, cwd: Path) -> None:
    """A run file may hold only the options that a site uses for every job."""
    if not {"model", "model_type", "config_name"} & {each.name for each in read_run_file(cwd / name, name)}:
        raise UsageError(
            f"no command after --, and {name} does not name a model to train",
            fix="add train: {model: …} to it, or write -- train --model demo-t5",
        )


def _train(words: Sequence[str], config: str | None, cwd: Path) -> RenderedProgram:
    recipe = resolve(words, cwd)
    for name in ("token", "hub_token"):
        if recipe.given(name) and recipe.sources[name] == "command line":
            raise UsageError(
                f"--{name.replace('_', '-')} would be written into the script, which everybody can read",
                fix="export HF_TOKEN=… where you call sbatch",
            )
    if recipe.spec.explain or recipe.spec.dry_run:
        raise UsageError("--explain and --dry-run of dsrun train do not start a job", fix="remove them")
    for notice in recipe.notices:
        print_note(notice)
    name = recipe.spec.model or recipe.spec.model_type or "train"
    program = train_program(
        words,
        output=recipe.spec.output,
        name=name.rstrip("/").rpartition("/")[2],
        on_cpu=bool(recipe.hf.get("use_cpu")),
    )
    return RenderedProgram(program=program, config=recipe.spec.config or config, recipe=recipe)


def check_training(recipe: Recipe, spec: SlurmSpec) -> None:
    """Raise now what `dsrun train` would raise on the nodes. `spec` is the completed one.

    Checks files unless an image provides them, and packages if the workers use the Python that renders.
    """
    if not (spec.container_image or spec.apptainer):
        check_files(recipe.spec, generation_config=recipe.hf.get("generation_config"))
    if uses_own_python(spec):
        check_packages(recipe)
    batch_of(recipe, spec.nodes * workers(spec))


def _refuse_tokens(words: Sequence[str]) -> None:
    for word in words:
        if _TOKEN.search(word):
            raise UsageError(
                f"{word[:6]}… looks like a token, and everybody can read a job's script",
                fix="put it into a variable and name the variable with --env",
            )


def from_run_file(config: str | None, cwd: Path) -> tuple[Given, ...]:
    """The options of the run file's `slurm:` section, and max_restarts of its `launch:` section."""
    if config is None:
        return ()
    path = cwd / config
    given = [given_key(key, words, where) for key, words, where in read_section(path, config, "slurm")]
    restarts = [
        Given(name="max_restarts", values=tuple(words), where=where)
        for key, words, where in read_section(path, config, "launch")
        if key.replace("-", "_") == "max_restarts" and all(each.name != "max_restarts" for each in given)
    ]
    if given:
        print_note(f"options from the slurm section of {config}: {', '.join(each.name for each in given)}")
    return (*given, *restarts)
