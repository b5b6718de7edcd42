"""`dsrun launch` on other machines: supervisors started over ssh, or by srun."""

import json
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from dsrun.launch.context import SshLauncher
from dsrun.launch.detection.hostfile import SshHost, excluded, included, parse_hostfile
from dsrun.launch.environment import ENVIRONMENT_FILE, forwarded_variables, parse_environment_file
from dsrun.launch.node.work import LaunchOptions, parse_program
from dsrun.launch.refusals import refusal
from dsrun.launch.signals import StartupSignals
from dsrun.launch.ssh import FLAG, RemoteSupervisor, first_line, remote_argv, run_on_hosts
from dsrun.launch.supervisor.events import STUCK_S, AsyncLineWriter
from dsrun.notifications.notify_target import variable_names
from dsrun.system import variables
from dsrun.system.env import expand_counts
from dsrun.system.net import behind_alias, is_this_machine
from dsrun.system.shell import command_line, command_lines
from dsrun.system.terminal.secrets import split_secrets
from dsrun.system.terminal.stderr import print_error, print_note

SELF = (sys.executable, "-m", "dsrun", "launch")


def over_ssh(
    options: LaunchOptions,
    place: SshLauncher,
    program: tuple[str, ...],
    signals: StartupSignals,
    *,
    more: Mapping[str, str],
) -> int:
    """Run one supervisor on each machine of the hostfile or of the job, with the variables `more` of another launcher;
    the exit code of node 0."""
    hosts = _hosts_of_job(place) if place.hosts else _hosts(options)
    remotes = _remote_supervisors(options, hosts, program, place, more)
    if options.dry_run:
        return _dry_run(place.job or str(options.hostfile), remotes)
    if any(remote.argv[0] == "ssh" for remote in remotes) and shutil.which("ssh") is None:
        raise refusal("remote.no_ssh")
    restarts = 3 if options.max_restarts is None else options.max_restarts
    if options.elastic or any(word.startswith("--elastic") for word in program):
        restarts = sys.maxsize  # the run goes on meanwhile
    with AsyncLineWriter(print_error, timeout_s=STUCK_S) as notify:
        code = run_on_hosts(remotes, max_restarts=restarts, notify=notify)
    signals.is_over = True
    return code


def _hosts(options: LaunchOptions) -> tuple[SshHost, ...]:
    file = options.hostfile or Path()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refusal("remote.hostfile", file=file, why=error) from None
    hosts = parse_hostfile(text, str(file))
    if options.include:
        return included(hosts, options.include)
    return excluded(hosts, options.exclude) if options.exclude else hosts


def _hosts_of_job(place: SshLauncher) -> tuple[SshHost, ...]:
    """The machines of a scheduler's job, each with all of its GPUs."""
    first = place.hosts[0]
    if not is_this_machine(first):
        raise refusal("remote.not_first", job=place.job, first=first, count=len(place.hosts))
    return tuple(SshHost(name=name, slots=()) for name in place.hosts)


def _remote_supervisors(
    options: LaunchOptions,
    hosts: tuple[SshHost, ...],
    program: tuple[str, ...],
    place: SshLauncher,
    more: Mapping[str, str],
) -> list[RemoteSupervisor]:
    """The command of each machine's supervisor, and what it reads from stdin: the environment and the run's secret."""
    # ssh's own aliases mean nothing to the ranks, nor on the other machines.
    address = options.master_addr or behind_alias(hosts[0].address)
    here = [is_this_machine(host.address) for host in hosts]
    is_loopback = address in ("localhost", "::1") or address.startswith("127.")
    if len(hosts) > 1 and not options.master_addr and is_loopback and not all(here):
        raise refusal("remote.loopback", where=place.job or options.hostfile, name=hosts[0].name)
    program, tokens = _without_tokens(program)
    secret = {variables.SECRET: os.environ.get(variables.SECRET) or secrets.token_hex(16), **tokens}
    environ = forwarded_variables(os.environ, _environment_files()) | {**more, **secret}
    named = variable_names([*options.argv(), *program])
    environ |= {name: os.environ[name] for name in named if name in os.environ}
    port = options.master_port or place.port
    names = ("nodes", "node_rank", "master_addr", "master_port", "nproc") if len(hosts) > 1 else ("nproc",)
    remotes = []
    for node, host in enumerate(hosts):
        nproc = min(options.nproc or len(host.slots), len(host.slots)) if host.slots else options.nproc
        own = replace(options, nodes=len(hosts), node_rank=node, master_addr=address, master_port=port, nproc=nproc)
        command = [*SELF, FLAG, *own.argv(*names), "--", *program]
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, host.slots))} if host.chosen else {}
        argv = (
            tuple(command) if here[node] else remote_argv(host.name, command, folder=str(Path.cwd()), environ=environ)
        )
        remotes.append(RemoteSupervisor(name=host.name, argv=argv, first_line=first_line({**environ, **gpus})))
    return remotes


def _without_tokens(program: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command of dsrun's own training without its access tokens, and the variable that has them instead."""
    if not parse_program(program).trains:
        return program, {}
    kept, tokens = split_secrets(program)
    return tuple(kept), {variables.TOKENS: json.dumps(tokens)} if tokens else {}


def _environment_files() -> dict[str, str]:
    """DeepSpeed's .deepspeed_env of the home folder and of this folder, which takes precedence."""
    found: dict[str, str] = {}
    for folder in (Path.home(), Path.cwd()):
        file = folder / ENVIRONMENT_FILE
        if file.is_file():
            found |= parse_environment_file(file.read_text(encoding="utf-8"), str(file))
    return found


def _dry_run(where: str, remotes: list[RemoteSupervisor]) -> int:
    """Print each machine's command, and the names of the variables that it gets over stdin."""
    print_note(f"over ssh from this machine, {len(remotes)} of {where}")
    names: set[str] = set()
    for remote in remotes:
        names |= set(json.loads(remote.first_line)["env"])
        click.echo(command_line(remote.argv))
    print_note(f"sent over stdin: {', '.join(sorted(names))}")
    return 0


def through_srun(options: LaunchOptions, nodes: int, program: tuple[str, ...], *, more: Mapping[str, str]) -> int:
    """Replace this process by an srun that starts one supervisor on each of the allocation's nodes; `more` is set
    here."""
    own = options.argv("master_addr", "master_port", "nproc")
    program, tokens = _without_tokens(program)
    stays = ["--no-kill", "--wait=0", "--kill-on-bad-exit=0"] if options.elastic else []  # the step, without a node
    argv = [*srun_argv(nodes, os.environ), *stays, *SELF, *own, "--", *program]
    if not options.dry_run:
        if shutil.which("srun") is None:
            raise refusal("remote.no_srun")
        secret = os.environ.get(variables.SECRET) or secrets.token_hex(16)
        os.execvpe("srun", argv, {**os.environ, variables.SECRET: secret, **tokens})
    print_note(f"in SLURM job {os.environ['SLURM_JOB_ID']}, outside of its steps")
    click.echo("\n".join(command_lines(argv, more)))
    return 0


def srun_argv(nodes: int, environ: Mapping[str, str]) -> list[str]:
    """srun of one task per node, with all CPUs that the job has there; by default a task gets one."""
    argv = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--export=ALL"]
    counts = expand_counts(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return [*argv, f"--cpus-per-task={min(counts)}"] if counts else argv
