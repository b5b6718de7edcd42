"""Which checkpoint a run goes on from."""

import secrets
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.runs.attempts import RESUME_AUTO, bears, no_checkpoint
from dsrun.runs.commit import CONVERTED, HIDDEN, set_aside, tidy
from dsrun.runs.folder import RunFolder
from dsrun.runs.heartbeat import SignOfLife
from dsrun.runs.manifest import MANIFEST, STATE_FILE, FileDamage, read_manifest
from dsrun.system.files import parse_json, read_object
from dsrun.system.host import hostname
from dsrun.system.terminal.display import NotePrinter
from dsrun.train.base.distributed import all_gather_object, rank0_first, ranks
from dsrun.train.base.refusals import notice_of, notices, refusal
from dsrun.train.checkpoint.verify import CONFIG_FILE, STATES, check_foreign, read_through
from dsrun.train.model.parameter_groups import ONE_RATE

# How long an NFS client may keep believing that a name is not there (acdirmax of nfs(5)).
_NFS_PATIENCE_S = 60.0
_SHOWN_DIFFERENCES = 3

CheckpointReader = Callable[[Path], list[FileDamage]]


def find_checkpoint(
    spec: TrainSpec,
    folder: RunFolder,
    *,
    facts: Mapping[str, Any],
    notify: NotePrinter,
    beat: SignOfLife = lambda: None,
    again: Collection[str] = (),
) -> Path | None:
    """The checkpoint that --resume asks for, or None to start at step 0. A collective: all ranks get the same answer.
    `auto` takes the newest of the run folder whose contents verify, and reports which it passed over and why; `never`
    starts anew; anything else is a checkpoint folder, and in a later attempt only where this run has not come farther
    itself, as checkpoints show that bear a signature of its earlier attempts (`again`). `facts` are this run's, as
    `checkpoint_facts` gives them."""
    for message in rank0_first(lambda: tidy(folder)):
        notify(message)
    _check_shared_folder(folder, force=spec.force, notify=notify)
    read = partial(read_through, trust=spec.trust, beat=beat)
    found: Path | None = None
    if spec.resume in RESUME_AUTO:
        found = _newest(folder, read, notify)
        if found is None and rank0_first(folder.checkpoints):
            notify("no checkpoint of this run is whole: starting at step 0")
    elif spec.resume != "never":
        given = Path(spec.resume)
        if again:
            # An earlier attempt may have died before it set another course's checkpoints aside.
            start = rank0_first(lambda: _step(given))
            beyond = -1 if start is None else start
            found = _newest(folder, read, notify, lambda step, path: step > beyond and _is_signed(path, again))
        found = found or _given(given, folder, read, spec.trust, notify)
    if found:
        rank0_first(lambda: _refuse_renamed(folder, found))
        for message in rank0_first(lambda: _compare(found, facts, force=spec.force)):
            notify(message)
    for message in rank0_first(lambda: _set_aside_later(folder, found)):
        notify(message)
    if found:
        notify(f"resuming from {found}")
    return found


def set_earlier_run_aside(folder: RunFolder, now: datetime, *, discard: bool) -> Path | None:
    """Make room for --resume never: an earlier run's results move into `earlier-<time>/` of the run folder, or are
    deleted with `discard` (--force); its logs stay. Returns the folder they moved to, if any did."""
    tidy(folder)
    paths = [path for _, path in folder.checkpoints()] + list(folder.results)
    for pattern in ("predictions-*.jsonl", "samples-rank-*.jsonl"):
        paths += folder.path.glob(pattern)
    results = [path for path in paths if path.exists()]
    aside = folder.path / f"earlier-{now:%Y%m%d-%H%M%S}"
    if results and not discard:
        aside.mkdir()
    for path in results:
        if not discard:
            path.rename(aside / path.name)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return aside if results and not discard else None


def holds_another_run(folder: RunFolder, signed: Collection[str]) -> bool:
    """Whether a checkpoint in the folder is none of the run that has signed its own with one of `signed`."""
    manifests = [read_manifest(path) for _, path in folder.checkpoints()]
    return any(manifest and not bears(manifest, signed) for manifest in manifests)


def _is_signed(checkpoint: Path, signed: Collection[str]) -> bool:
    manifest = read_manifest(checkpoint)
    return manifest is not None and bears(manifest, signed)


def _newest(
    folder: RunFolder,
    read: CheckpointReader,
    notify: NotePrinter,
    wanted: Callable[[int, Path], bool] = lambda *_: True,
) -> Path | None:
    for _, path in rank0_first(lambda: [each for each in folder.checkpoints() if wanted(*each)]):
        damage = read(path)
        if not damage:
            return path
        more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
        notify(f"{path.name} passed over: {damage[0]}{more}")
    return None


def _given(path: Path, folder: RunFolder, read: CheckpointReader, trust: bool, notify: NotePrinter) -> Path:
    if not rank0_first((path / STATE_FILE).is_file):
        raise no_checkpoint(str(path), folder)
    path = path.absolute()
    if rank0_first((path / MANIFEST).exists):
        damage = read(path)
        if damage:
            raise refusal("checkpoint.damaged", path=path, damage=damage[0])
        return path
    rank0_first(lambda: check_foreign(path, trust=trust))
    notify(f"{path} has no {MANIFEST}, as dsrun did not write it: its files cannot be verified")
    return path


def _refuse_renamed(folder: RunFolder, checkpoint: Path) -> None:
    """Raise UsageError for one of the run's own checkpoints whose name gives another step than its state: it would be
    moved aside as a later one, and the save of that step replace it."""
    step = _step(checkpoint)
    expected = folder.checkpoint(step or 0)
    if step is not None and checkpoint.parent.samefile(folder.path) and checkpoint.name != expected.name:
        raise refusal("checkpoint.renamed", checkpoint=checkpoint, step=step, name=expected.name)


def _compare(checkpoint: Path, facts: Mapping[str, Any], *, force: bool) -> list[str]:
    """What differs between the run that saved the checkpoint and this one. Raises UsageError for another model type
    or other groups of learning rates, and for another config, tokenizer, LoRA or training data unless `force`."""
    if not any(any(checkpoint.glob(pattern)) for pattern in STATES):
        # As --save_only_model leaves it: without ZeRO the Trainer would go on with an optimizer that knows nothing.
        raise refusal("checkpoint.weights_alone", path=checkpoint)
    manifest = read_manifest(checkpoint)
    saved = manifest["extra"] if manifest else {}
    # A checkpoint of adapters has no config.
    kind = saved.get("model_type") or read_object(checkpoint / CONFIG_FILE).get("model_type")
    if kind not in (None, facts.get("model_type", kind)):
        raise refusal("checkpoint.other_model", checkpoint=checkpoint, kind=kind, ours=facts["model_type"])
    rates = saved.get("learning_rates", ONE_RATE)
    if manifest and rates != facts.get("learning_rates", rates):
        # The optimizer's states are kept group by group.
        raise refusal("checkpoint.rates", checkpoint=checkpoint, was=rates, now=facts["learning_rates"])
    other = {name for name in saved.keys() & facts.keys() if saved[name] != facts[name]}
    differences = _changed_keys(saved, facts) if "config_sha256" in other else ""
    if not differences:
        other.discard("config_sha256")

    def told(group: str) -> list[str]:
        names = {"name": checkpoint.name, "differences": differences}
        texts = notices(group).items()
        return [text.format(was=saved[key], now=facts[key], **names) for key, text in texts if key in other]

    changed = told("changed")
    if changed and not force:
        raise refusal("checkpoint.changed", checkpoint=checkpoint, changed=" and ".join(changed))
    lines = [f"resuming with {what} than {checkpoint.name} was saved with" for what in changed]
    lines += [notice_of("resumed.data")] if "train_fingerprint" in other else []
    return lines + told("differs")


def _changed_keys(saved: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The first differences of the model configs. Another release of transformers writes keys that this one does not
    know, or the other way round: those make no other model."""
    was, now = saved.get("config", {}), facts["config"]
    releases = [each.get("versions", {}).get("transformers") for each in (saved, facts)]
    names = {*was, *now} if releases[0] == releases[1] or not was else {*was} & {*now}
    found = [f"{n} was {was.get(n)}, is {now.get(n)}" for n in sorted(names) if was.get(n) != now.get(n)]
    more = len(found) - _SHOWN_DIFFERENCES
    return "; ".join(found[:_SHOWN_DIFFERENCES] + ([f"{more} more"] if more > 0 else []))


def _set_aside_later(folder: RunFolder, chosen: Path | None) -> list[str]:
    """Set aside the run's checkpoints beyond the one chosen, all where there is none. A later `auto` would take one of
    them for the newest, rotation would delete this run's own instead, and the save of the same step replace it."""
    step = _step(chosen) if chosen else 0
    if chosen is None:
        # What was converted for an earlier attempt is never loaded again.
        shutil.rmtree(folder.path / CONVERTED, ignore_errors=True)
    beyond = [] if step is None else [each for each, _ in folder.checkpoints() if each > step]
    return [f"checkpoint-{each} moved to {set_aside(folder, each).relative_to(folder.path)}" for each in sorted(beyond)]


def _step(checkpoint: Path) -> int | None:
    try:
        return int(parse_json((checkpoint / STATE_FILE).read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        number = checkpoint.name.rpartition("-")[2]
        return int(number) if number.isdigit() else None


def _check_shared_folder(folder: RunFolder, *, force: bool, notify: NotePrinter) -> None:
    """Raise UsageError where a rank's run folder is not rank 0's: a checkpoint would be spread over several disks."""
    if ranks() == 1:
        return

    def leave_token() -> str:
        (folder.path / HIDDEN).mkdir(parents=True, exist_ok=True)
        token = f"token-{secrets.token_hex(4)}"
        (folder.path / HIDDEN / token).touch()
        return token

    token = rank0_first(leave_token)
    seen = all_gather_object((hostname(), _appears(folder.path / HIDDEN / token)))
    rank0_first(lambda: shutil.rmtree(folder.path / HIDDEN, ignore_errors=True))
    blind = sorted({host for host, sees in seen if not sees})
    if not blind:
        return
    why = f"{', '.join(blind)} cannot see what {seen[0][0]} writes there"
    error = refusal("checkpoint.not_shared", run=folder.path, why=why)
    if not force:
        raise error
    notify(f"{error.message}; no checkpoint can be saved")


def _appears(path: Path) -> bool:
    """Whether `path` is there, or comes to be while an NFS client's idea of the folder grows old."""
    end = time.monotonic() + _NFS_PATIENCE_S
    while not path.exists():
        if time.monotonic() > end or not path.parents[1].is_dir():
            return False
        time.sleep(0.5)
    return True
