"""Experiment trackers: which packages they need, and what keeps them from asking questions in the middle of a job.

These packages, and those that only some flags need, are looked for before a job starts."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from dsrun.errors import MissingError, UsageError, did_you_mean
from dsrun.recipe.recipe import Recipe

# Those that are named as their packages.
PACKAGES = ("wandb", "tensorboard", "trackio", "mlflow", "comet_ml", "clearml", "swanlab", "codecarbon")
# All that transformers has a callback for; a test compares.
KNOWN = (*PACKAGES, "azure_ml", "neptune", "dagshub", "flyte", "dvclive", "kubeflow", "all")
WANDB_HOST = "api.wandb.ai"


def trackers(recipe: Recipe) -> list[str]:
    """The trackers that --report-to and --wandb-project name."""
    given = recipe.hf.get("report_to") or []
    names = [name for name in ([given] if isinstance(given, str) else given) if name != "none"]
    if recipe.spec.wandb_project and not {"wandb", "all"} & set(names):
        names.append("wandb")
    return names


def environment(
    recipe: Recipe, run: Path, environ: Mapping[str, str], *, reachable: Callable[[str], bool]
) -> tuple[dict[str, str], str | None]:
    """The variables the trackers of a run in folder `run` need, and a notice where wandb goes offline.

    wandb without a key asks for one and waits; with a key but without a network it retries for minutes and then
    ends the job. Offline it writes everything into the run folder, from where `wandb sync` takes it later.
    `reachable` says whether a host answers; it is asked only where a key would be used."""
    names = trackers(recipe)
    wanted: dict[str, str] = {}
    notice = None
    if "tensorboard" in names or "all" in names:
        wanted["TENSORBOARD_LOGGING_DIR"] = recipe.spec.tensorboard_dir or str(run / "tensorboard")
    if "mlflow" in names or "all" in names:
        # Its own default is a folder beside the run's; since 3.x it refuses plain folders.
        wanted["MLFLOW_TRACKING_URI"] = f"sqlite:///{run.resolve()}/mlflow.db"
    if "wandb" in names:
        wanted |= {"WANDB_DIR": str(run), "WANDB_SILENT": "true"}
        if recipe.spec.wandb_project:
            wanted["WANDB_PROJECT"] = recipe.spec.wandb_project
        if "WANDB_MODE" not in environ:
            why = _why_offline(environ, reachable)
            if why:
                wanted["WANDB_MODE"] = "offline"
                notice = f"wandb {why}: logging offline; send it later with `wandb sync {run}/wandb/offline-*`"
    return {name: value for name, value in wanted.items() if name not in environ}, notice


def _why_offline(environ: Mapping[str, str], reachable: Callable[[str], bool]) -> str | None:
    host = environ.get("WANDB_BASE_URL", f"https://{WANDB_HOST}").split("//")[-1].split("/")[0].split(":")[0]
    if not environ.get("WANDB_API_KEY") and not _has_netrc_entry(environ, host):
        return "has no API key"
    return None if reachable(host) else f"cannot reach {host}"


def _has_netrc_entry(environ: Mapping[str, str], host: str) -> bool:
    import netrc  # for wandb only

    file = environ.get("NETRC") or str(Path(environ.get("HOME", "~")).expanduser() / ".netrc")
    try:
        return netrc.netrc(file).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


OF_FLAGS = {"quantization": "bitsandbytes", "fp8": "torchao"}
"""By flag; those that the training libraries bring along are not here."""
MODELSCOPE = ("modelscope_hub", "pip install 'dsrun[modelscope]'")
"""The module for --hub modelscope, and how it is installed."""


def check_packages(recipe: Recipe) -> None:
    """Raise UsageError for an unknown tracker, and MissingError for what is not installed."""
    for name in trackers(recipe):
        if name not in KNOWN:
            what = f"--report-to {name}: there is no such tracker"
            raise UsageError(what, fix=did_you_mean(name, KNOWN, f"choose from {', '.join(sorted(KNOWN))}"))
        _require(f"--report-to {name}", name if name in PACKAGES else None)
    for flag, package in OF_FLAGS.items():
        if recipe.value(flag):
            _require(recipe.where(flag), package)
    if recipe.spec.hub == "modelscope":
        _require(f"{recipe.where('hub')} modelscope", *MODELSCOPE)


def _require(flag: str, package: str | None, fix: str | None = None) -> None:
    if package and find_spec(package) is None:
        raise MissingError(f"{flag} needs the package {package}", fix=fix or f"pip install {package}")
