"""DeepSpeed's operations: which there are, what each needs, and which of them a wheel gets (build/ops.toml)."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from string import Template
from typing import Any, Literal

from dsrun.datafiles import data_folder, read_toml
from dsrun.errors import UsageError, did_you_mean
from dsrun.findings.finding import Finding, finding_of, text_of
from dsrun.messages import Message, joined
from dsrun.refusals import Refusals
from dsrun.wheel.platform.cxx import needs, way_to_install

OpLanguage = Literal["host", "cuda-host", "cuda"]
# setup.py compiles pin_memory with them whether it was asked for or not: they load it at run time.
_WANT_PIN_MEMORY = ("async_io", "gds")
_GROUPS = ("default", "all")
DEEPSPEED = "deepspeed"


@dataclass(frozen=True, kw_only=True)
class DeepspeedOp:
    """One operation as DeepSpeed's builder for one or more accelerators declares it, or another's extension module.

    `code` is "host" (plain C++), "cuda-host" (C++ with CUDA's headers and libraries) or "cuda" (kernels).
    `library` is the path of its .so inside the wheel up to Python's own suffix. `lowest` is the compute
    capability below which its builder drops architectures, for itself and (through TORCH_CUDA_ARCH_LIST) for
    every operation after it. `bf16`: its code for bf16 is left out where an architecture is below 8.0. `link_before`
    and `link_after` are flags that its link alone needs. `since` and `until` are the first and last DeepSpeed versions
    with this row, None for no bound. `broken` says why it does not compile. `package`: whose it is."""

    name: str
    variable: str
    code: OpLanguage
    accelerators: tuple[str, ...]
    library: str
    needs: tuple[str, ...] = ()
    default: bool = False
    broken: str | None = None
    lowest: str | None = None
    bf16: bool = False
    aliases: tuple[str, ...] = ()
    link_before: tuple[str, ...] = ()
    link_after: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    note: str = ""
    package: str = DEEPSPEED

    def in_version(self, version: str) -> bool:
        from packaging.version import Version

        base = Version(Version(version).base_version)
        after = self.since is None or base >= Version(self.since)
        return after and (self.until is None or base <= Version(self.until))


@cache
def all_ops() -> tuple[DeepspeedOp, ...]:
    ops = []
    for row in read_toml(data_folder("build") / "ops.toml")["op"]:
        values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        ops.append(DeepspeedOp(**values))
    return tuple(ops)


def op_table(version: str | None = None) -> tuple[DeepspeedOp, ...]:
    """The operations of DeepSpeed `version`, by default of the newest one known here."""
    if version is None:
        return tuple(op for op in all_ops() if op.until is None)
    return tuple(op for op in all_ops() if op.in_version(version))


def choose_ops(
    text: str | None,
    kind: str,
    *,
    available: Callable[[str], bool],
    version: str | None = None,
    patched: bool = False,
    cuda: str | None = None,
) -> tuple[tuple[DeepspeedOp, ...], tuple[str, ...]]:
    """The operations that `--ops text` means for accelerator `kind` ("cuda" or "cpu"), and what to tell the user.

    `text` is None or "default" (what fine-tuning with ZeRO uses), "all", or names separated by commas; group
    words and names mix, and `-NAME` takes one out. Of a group, operations whose `available(need)` is false are
    left out, each with a notice; named ones stay and `missing` reports them. `patched`: the source is not
    upstream's, so an operation known as broken is built when it is named. `cuda` is the version whose packages
    the notices name ("13.0"). Raises UsageError for an unknown name,
    one that this accelerator does not have, and one that does not compile upstream."""
    names = [word.strip() for word in (text or "default").split(",") if word.strip()]
    if not names:
        raise UsageError(f"--ops {text!r} names no operation", fix="--ops default, --ops all, or names")
    table = {op.name: op for op in op_table(version) if kind in op.accelerators}
    chosen: dict[str, DeepspeedOp] = {}
    lacking: dict[str, DeepspeedOp] = {}
    for word in names:
        if word in _GROUPS:
            lacking |= _add_group(word, table, chosen, available)
        elif word.startswith("-"):
            name = _find(word[1:], table, kind).name
            chosen.pop(name, None)
            lacking.pop(name, None)
        else:
            op = _find(word, table, kind)
            if op.broken and not patched:
                raise Refusals(__file__, "refusals.toml").error("ops.broken", op=op)
            chosen[op.name] = op
    notices = _left_out([op for name, op in lacking.items() if name not in chosen], available, cuda)
    if any(name in chosen for name in _WANT_PIN_MEMORY) and "pin_memory" not in chosen:
        chosen["pin_memory"] = table["pin_memory"]
        notices.append("pin_memory is built as well: async_io and gds load it at run time")
    if not chosen:
        raise UsageError(f"--ops {text!r} leaves no operation to build", fix="--ops default")
    return tuple(op for name, op in table.items() if name in chosen), tuple(notices)


def named_ops(text: str | None, kind: str, version: str | None = None) -> frozenset[str]:
    """Those of `--ops text` that were asked for by name and not as part of a group. For what `choose_ops` took."""
    table = {op.name: op for op in op_table(version) if kind in op.accelerators}
    names = [word.strip() for word in (text or "").split(",") if word.strip()]
    named = [word for word in names if word not in _GROUPS and not word.startswith("-")]
    return frozenset(_find(word, table, kind).name for word in named)


def _add_group(
    word: str, table: Mapping[str, DeepspeedOp], chosen: dict[str, DeepspeedOp], available: Callable[[str], bool]
) -> dict[str, DeepspeedOp]:
    """Add the operations of group `word` that can be built to `chosen`; returns the others."""
    group = [op for op in table.values() if word == "all" or op.default]
    # Without these the wheel would not be what the group promises: that they cannot be built is an error.
    basic = [op for op in group if op.default and op.code != "host" and op.name not in _WANT_PIN_MEMORY]
    lacking = [op for op in group if op.broken or not (op in basic or all(map(available, op.needs)))]
    chosen.update((op.name, op) for op in group if op not in lacking)
    return {op.name: op for op in lacking}


def _left_out(ops: Sequence[DeepspeedOp], available: Callable[[str], bool], cuda: str | None) -> list[str]:
    """One line for each reason why some of `ops` are left out."""
    users: dict[str, list[str]] = {}
    for op in ops:
        lacking = [name for name in op.needs if not (op.broken or available(name))]
        found = [
            text_of("op_left_out.not_found", what=Message(needs()[name].what), install=way_to_install(name, cuda=cuda))
            for name in lacking
        ]
        shown = text_of("op_left_out.noted", op=op.name, note=Message(op.note or "")) if op.default else op.name
        for reason in [Message(op.broken)] if op.broken else found:
            users.setdefault(reason, []).append(shown)
    return [text_of("op_left_out.because", ops=listed(names), reason=reason) for reason, names in users.items()]


def _find(word: str, table: Mapping[str, DeepspeedOp], kind: str) -> DeepspeedOp:
    """The row that `word` names: the operation's name, an alias, or its DS_BUILD_ variable, in any case."""
    key = word.strip().lower().replace("-", "_")
    for op in table.values():
        if key in (op.name, op.variable.lower(), *op.aliases):
            return op
    elsewhere = [op for op in all_ops() if key in (op.name, op.variable.lower(), *op.aliases)]
    if elsewhere and all(kind not in op.accelerators for op in elsewhere):
        kinds = " and ".join(sorted({name for op in elsewhere for name in op.accelerators}))
        raise UsageError(f"{elsewhere[0].name} exists for {kinds} only, and this wheel is for {kind}")
    if elsewhere:
        op = elsewhere[0]
        when = f"it came with {op.since}" if op.since else f"it went after {op.until}"
        raise UsageError(f"this DeepSpeed has no {op.name} for {kind}: {when}")
    names = did_you_mean(key, [*table, *_GROUPS], f"known: {', '.join(table)}")
    raise UsageError(f"there is no operation {word!r}", fix=names)


def missing(
    ops: Sequence[DeepspeedOp],
    available: Callable[[str], bool],
    *,
    cuda: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Finding]:
    """One error for each thing that `ops` need and `available(need)` denies, with the command that installs it.

    `cuda` is the CUDA version whose packages are named ("13.0")."""
    wanted: dict[str, list[str]] = {}
    for op in ops:
        for name in op.needs:
            wanted.setdefault(name, []).append(op.name)
    return [
        finding_of(
            "need_missing",
            where=f"--ops {','.join(users)}",
            users=listed(users),
            what=Message(needs()[name].what),
            fix=way_to_install(name, cuda=cuda, environ=environ),
        )
        for name, users in wanted.items()
        if not available(name)
    ]


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", or "a, b and c"."""
    return joined(" and ", [joined(", ", names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def links(
    ops: Sequence[DeepspeedOp], environ: Mapping[str, str] | None = None
) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Flags that the link of one library alone needs, variables filled in: {"async_io_op": (before, after)}.

    In LDFLAGS they would go into every library of the build, and one node without libaio could load none of them."""
    known = os.environ if environ is None else environ

    def filled(flags: Sequence[str]) -> tuple[str, ...]:
        return tuple(Template(flag).safe_substitute(known) for flag in flags)

    return {
        op.library.rsplit("/", 1)[-1]: (filled(op.link_before), filled(op.link_after))
        for op in ops
        if op.link_before or op.link_after
    }
