"""Which network interface NCCL and gloo take."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence

from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of

# Made by container and virtual machine software; nothing outside of this machine is reached over them.
VIRTUAL = ("docker", "br-", "virbr", "veth", "vnet", "cni", "flannel", "cali", "tunl", "podman", "lxc", "lxdbr", "tap")


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """NCCL takes InfiniBand's interfaces first, then all but lo and docker* (NCCL manual, NCCL_SOCKET_IFNAME); gloo the
    one that this machine's own name resolves to."""
    there = machine.network.interfaces()
    found = [*_named(machine.environ, there)]
    # Without the addresses that each interface gives itself, over which no other network is reached.
    beyond = {name: [a for a in own if not ipaddress.ip_address(a).is_link_local] for name, own in there.items()}
    networks = {name: addresses for name, addresses in beyond.items() if addresses}
    outward = [name for name in networks if not name.startswith(("lo", *VIRTUAL))]
    virtual = [name for name in networks if name.startswith(VIRTUAL) and not name.startswith("docker")]
    in_job = bool(machine.environ.get("SLURM_JOB_ID"))
    several = in_job and max(target.nodes, _nodes(machine.environ)) > 1
    set_by_user = "NCCL_SOCKET_IFNAME" in machine.environ
    if several and not set_by_user and not found:
        ib = [name for name in outward if name.startswith("ib")]
        if not outward:
            found.append(finding_of("interfaces_none"))
        elif not ib and (len(outward) > 1 or virtual):
            found.append(finding_of("interfaces_several", names=", ".join((*outward, *virtual)), first=outward[0]))
    yield from found
    if not found:
        shown = ", ".join(f"{name} ({networks[name][0]})" for name in outward[:4]) or text_of("interfaces.loopback")
        message = text_of("interfaces.more", names=shown) if len(outward) > 4 else shown
        yield Finding(level="info", code="interfaces", message=message)


def _nodes(environ: Mapping[str, str]) -> int:
    text = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or ""
    return int(text) if text.isascii() and text.isdigit() else 1


def _named(environ: Mapping[str, str], there: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """The variables that name interfaces which are not there, or are down."""
    nccl = environ.get("NCCL_SOCKET_IFNAME", "")
    if nccl and not _nccl_matches(nccl, there):
        yield _missing("NCCL_SOCKET_IFNAME", nccl, there)
    gloo = environ.get("GLOO_SOCKET_IFNAME", "")
    absent = [name for name in gloo.split(",") if name and name not in there]
    if absent:
        yield _missing("GLOO_SOCKET_IFNAME", gloo, there)


def _missing(variable: str, value: str, there: Mapping[str, Sequence[str]]) -> Finding:
    others = ", ".join(name for name in there if not name.startswith("lo")) or text_of("interfaces.loopback")
    return finding_of("interfaces_named", variable=variable, value=value, others=others)


def _nccl_matches(value: str, there: Mapping[str, Sequence[str]]) -> list[str]:
    """Beginnings of names, after = whole names, after ^ those to leave out (NCCL manual)."""
    sign = value[0] if value[0] in "^=" else ""
    exact = value.startswith(("=", "^="))
    names = [name.partition(":")[0] for name in value.lstrip("^=").split(",") if name]
    hit = {each for each in there if any(each == name if exact else each.startswith(name) for name in names)}
    if sign == "^":
        return [each for each in there if each not in hit and each != "lo"]
    return [each for each in there if each in hit]
