"""The network presets of slurm/networks.toml, and what an interface means to NCCL and to gloo."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache

from dsrun.datafiles import data_folder


@dataclass(frozen=True, kw_only=True)
class Network:
    """One preset: what it is for, and its variables."""

    about: str
    variables: dict[str, str]


@cache
def networks() -> dict[str, Network]:
    """The presets by name."""
    text = (data_folder("slurm") / "networks.toml").read_text(encoding="utf-8")
    return {name: Network(**entry) for name, entry in tomllib.loads(text).items()}


def preset_variables(preset: str | None) -> dict[str, str]:
    """The variables of a preset; none without one."""
    return networks()[preset].variables if preset else {}


def interface_variables(interface: str | None) -> dict[str, str]:
    """NCCL's and gloo's variables for the interfaces a user named.

    NCCL takes a name for a prefix unless `=` stands before it, and `^` for all others. gloo takes whole names only
    and fails on anything else, so that it gets none from an exclusion.
    """
    if not interface:
        return {}
    if interface.startswith("^"):
        return {"NCCL_SOCKET_IFNAME": interface}
    names = interface.removeprefix("=")
    return {"NCCL_SOCKET_IFNAME": f"={names}", "GLOO_SOCKET_IFNAME": names}
