"""Ranks against visible GPUs, and what an earlier launcher, allocation or debugging session left in the environment;
names, the port of the ranks' rendezvous, and which network interface NCCL and gloo take."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence

from dsrun.datafiles import toml_beside
from dsrun.doctor.machine_facts import RESOLVE_S, DoctorTarget, MachineFacts
from dsrun.errors import DsrunError
from dsrun.findings.finding import Finding, finding_of, findings_where, first_where, text_of
from dsrun.launch.context import DEFAULT_PORT, LAST_PORT, LaunchRequest, decide
from dsrun.launch.detection.detect import in_slurm_step
from dsrun.launch.detection.started import launcher_of
from dsrun.machine.torch_gpus import NO_DEVICES
from dsrun.system.env import worker_from_env
from dsrun.system.host import cores
from dsrun.system.terminal.display import counted
from dsrun.system.variables import MISLEADING

VISIBLE = "CUDA_VISIBLE_DEVICES"
GIB = 2**30


def look_at_ranks(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """What `dsrun train --nproc` refuses, and GPUs that a variable hides."""
    every = list(machine.driver.gpus) if machine.driver else []
    seen = machine.gpus
    value = machine.environ.get(VISIBLE)
    if not target.runs_on(machine):
        return
    names = {"variable": VISIBLE, "every": len(every), "seen": len(seen)}
    problem = None
    if every and value is not None:
        named = len([entry for entry in value.split(",") if entry.strip()])
        problem = next(first_where(__file__, "hidden", value=value, named=named, NO_DEVICES=NO_DEVICES, **names), None)
    if problem:
        yield problem
    wants_cpu = bool(target.recipe and target.recipe.hf.get("use_cpu"))
    try:
        topology = decide(nproc=target.nproc, visible_gpus=len(seen), cores=cores(machine.root), use_cpu=wants_cpu)
    except DsrunError as error:
        yield Finding(level="error", code="ranks", message=error.message, fix=error.fix or "")
        return
    if problem:
        return
    ranks = counted(topology.workers, "rank")
    yield from first_where(__file__, "ranks", ranks=ranks, device=topology.device, **names)


def check_requirements(machine: MachineFacts, min_gpus: int | None, min_gpu_memory_gib: float | None) -> list[Finding]:
    """An error if fewer GPUs than --min-gpus are visible here, and one for each with less than --min-gpu-memory."""
    gpus = machine.gpus
    found = []
    if min_gpus is not None and len(gpus) < min_gpus:
        key = "requirements_gpus.one" if len(gpus) == 1 else "requirements_gpus"
        found.append(finding_of(key, count=len(gpus), wanted=min_gpus))
    for gpu in gpus:
        if min_gpu_memory_gib is not None and gpu.memory_total is not None:
            gib, wanted = gpu.memory_total / GIB, min_gpu_memory_gib
            if gib < wanted:
                found.append(finding_of("requirements_memory", index=gpu.index, name=gpu.name, gib=gib, wanted=wanted))
    return found or [finding_of("requirements", gpus=counted(len(gpus), "visible GPU"))]


_WORKER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def look_at_variables(machine: MachineFacts, _: DoctorTarget) -> Iterator[Finding]:
    """What would make `dsrun train` here a rank of a run that is not there, train without DeepSpeed, or slowly."""
    found = [*_worker(machine), *_job(machine), *_accelerate(machine), *_slow(machine)]
    yield from found or [finding_of("variables")]


def _worker(machine: MachineFacts) -> Iterator[Finding]:
    environ = machine.environ
    if launcher_of(LaunchRequest(), environ):  # A pod's own, which `dsrun launch` reads.
        return
    left = [name for name in _WORKER if environ.get(name, "").strip()]
    unset = f"unset {' '.join(left)}"
    try:
        worker = worker_from_env(environ)
    except DsrunError as error:
        fix = unset if left else error.fix or ""
        yield Finding(level="error", code="variables_worker", message=error.message, fix=fix)
        return
    if worker is not None and not in_slurm_step(environ):
        yield finding_of("variables_worker", rank=worker.rank, world_size=worker.world_size, unset=unset)


def _job(machine: MachineFacts) -> Iterator[Finding]:
    """The variables of an allocation that has ended, as a terminal multiplexer keeps them."""
    job = machine.environ.get("SLURM_JOB_ID", "")
    if not job:
        return
    text = machine.answer("squeue", "--noheader", "--format=%T", f"--jobs={job}")
    if text is not None and text.strip() not in ("RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING"):
        yield finding_of("variables_slurm", job=job, state=text.strip() or text_of("variables_slurm.gone"))


def _accelerate(machine: MachineFacts) -> Iterator[Finding]:
    names = [name for name in MISLEADING if machine.environ.get(name)]
    if names:
        key = "variables_accelerate.one" if len(names) == 1 else "variables_accelerate"
        yield finding_of(key, names=", ".join(names), fix=f"unset {' '.join(names)}")
    if machine.environ.get("DS_ACCELERATOR") == "cpu" and machine.gpus:
        yield finding_of("variables_ds_accelerator")


def _slow(machine: MachineFacts) -> Iterator[Finding]:
    for name, slow in toml_beside(__file__, "conditions.toml")["slow"].items():
        value = machine.environ.get(name, "")
        if value.upper() == slow:
            yield finding_of("variables_slow", name=name, value=value, what=text_of(f"variables_slow.{name}"))


def look_at_port(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """The port that was named must be free; without one dsrun takes a free one on one machine, and 29500 on several."""
    named, by = _named_port(machine, target)
    is_port = not isinstance(named, str)
    port = DEFAULT_PORT if isinstance(named, str) else named or DEFAULT_PORT
    taken = machine.network.taken(port) if is_port else ""
    next_taken = machine.network.taken(port + 1) if is_port and named and target.nodes > 1 and not taken else ""
    names = {"is_port": is_port, "taken": taken, "next_taken": next_taken, "LAST_PORT": LAST_PORT}
    yield from first_where(__file__, "port", named=named, by=by, port=port, **names)


def _named_port(machine: MachineFacts, target: DoctorTarget) -> tuple[int | str | None, str]:
    """The port and what names it; the text where that is not a port."""
    if target.master_port is not None:
        return target.master_port, "--master-port"
    text = machine.environ.get("MASTER_PORT", "").strip()
    if not text:
        return None, ""
    return (int(text) if text.isascii() and text.isdigit() and 1 <= int(text) <= LAST_PORT else text), "MASTER_PORT"


def look_at_names(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """gloo and torch look up MASTER_ADDR and this machine's own name; Debian gives that the address 127.0.1.1."""
    address = target.master_addr or machine.environ.get("MASTER_ADDR", "").strip()
    own = machine.network.hostname()
    addresses = machine.network.resolve(own)
    there = machine.network.resolve(address) if address else ()
    several = (target.nodes > 1 and target.runs_on(machine)) or (bool(address) and not _is_local(machine, address))
    names = {"address": address, "own": own, "addresses": addresses, "there": there, "RESOLVE_S": RESOLVE_S}
    loopback = bool(addresses) and all(map(_is_loopback, addresses or ()))
    given = bool(target.master_addr)
    found = list(findings_where(__file__, "names", several=several, is_loopback=loopback, given=given, **names))
    yield from found or first_where(__file__, "resolved", **names)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _is_local(machine: MachineFacts, host: str) -> bool:
    own = {address for addresses in machine.network.interfaces().values() for address in addresses}
    return host == machine.network.hostname() or any(
        each in own or _is_loopback(each) for each in machine.network.resolve(host) or ()
    )


# Made by container and virtual machine software; nothing outside of this machine is reached over them.
VIRTUAL = ("docker", "br-", "virbr", "veth", "vnet", "cni", "flannel", "cali", "tunl", "podman", "lxc", "lxdbr", "tap")


def look_at_interfaces(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
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
    if any(name and name not in there for name in gloo.split(",")):
        yield _missing("GLOO_SOCKET_IFNAME", gloo, there)


def _missing(variable: str, value: str, there: Mapping[str, Sequence[str]]) -> Finding:
    others = ", ".join(name for name in there if not name.startswith("lo")) or text_of("interfaces.loopback")
    return finding_of("interfaces_named", variable=variable, value=value, others=others)


def _nccl_matches(value: str, there: Mapping[str, Sequence[str]]) -> set[str]:
    """Beginnings of names, after = whole names, after ^ those to leave out (NCCL manual)."""
    exact = value.startswith(("=", "^="))
    names = [name.partition(":")[0] for name in value.lstrip("^=").split(",") if name]
    hit = {each for each in there if any(each == name if exact else each.startswith(name) for name in names)}
    return there.keys() - hit - {"lo"} if value.startswith("^") else hit
