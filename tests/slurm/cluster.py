"""A real SLURM cluster on one machine: a controller, a login machine and any number of nodes, up in under a second.

    python -m tests.slurm.cluster --dir DIR up --nodes 4 --gpus a100:2
    python -m tests.slurm.cluster --dir DIR run --user ada -- sbatch --wrap hostname
    python -m tests.slurm.cluster --dir DIR down

Each machine has a network, host name, process space, /tmp and /dev/shm of its own; what else there is, all share.
Nothing outside DIR and one network bridge is touched, and several clusters run side by side. Needs root and the
packages that packages.py lists.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.slurm import configuration
from tests.slurm.configuration import CONTROLLER, LOGIN, Names, Options
from tests.slurm.machine import SYSTEM_PATH, Machine, outermost, private_folders
from tests.slurm.packages import missing

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("etc", "log", "run", "state", "spool", "devices", "home", "disk")
USABLE = frozenset({"idle", "mixed", "allocated", "completing"})


class ClusterError(Exception):
    """The cluster cannot be brought up, or something on it did not happen in time."""


class Cluster:
    """The cluster in the folder `root`, running or not."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).resolve()
        # slurm.conf knows no quotes, and the path of a socket has at most 107 bytes.
        if not (text := str(self.root)).isascii() or any(c.isspace() or c in "#\\=,%" for c in text) or len(text) > 80:
            raise ClusterError(f"{self.root}: not a path that slurm.conf can name")
        self._names = Names.of(self.root)
        self._options_file = self.root / "options.json"

    @property
    def options(self) -> Options | None:
        """What it was brought up with; None when it is down."""
        try:
            given = json.loads(self._options_file.read_text())
        except FileNotFoundError:
            return None
        return Options(**{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()})

    @property
    def env(self) -> dict[str, str]:
        """The environment for SLURM's commands on the host."""
        return {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "SLURM_CONF": f"{self.root}/etc/slurm.conf"}

    @property
    def machines(self) -> dict[str, Machine]:
        options = self.options
        if options is None:
            return {}
        shared = (self.root, CHECKOUT, Path(sys.prefix), Path(sys.base_prefix))
        private = private_folders(shared)
        kept = outermost(path for path in shared if any(path.is_relative_to(own) for own in private))
        return {
            name: Machine(
                self.root, name, role, address,
                gateway=f"{self._names.network}.254",
                switch=self._names.switch,
                cable=f"{self._names.cable}-{address.rpartition('.')[2]}",
                private=private,
                shared=kept,
            )
            for name, address in configuration.addresses(options, self.root).items()
            for role in [{CONTROLLER: "controller", LOGIN: "login"}.get(name, "compute")]
        }  # fmt: skip

    def up(self, options: Options, seconds: float = 60) -> None:
        """Bring it up anew and wait until every node takes jobs. Raises ClusterError with the logs' ends."""
        self.down()
        self._write_files(options)
        self._options_file.write_text(json.dumps(asdict(options)))
        switch = self._names.switch
        lines = [f"link add {switch} type bridge", f"link set {switch} up"]
        lines += [f"addr add {self._names.network}.254/24 dev {switch}", ""]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
        for machine in self.machines.values():
            machine.power_on()
        self.wait_until_ready(seconds)

    def down(self) -> None:
        """Switch everything off and remove what is not worth reading; logs and home folders stay until `up`."""
        for machine in self.machines.values():
            machine.power_off()
        subprocess.run(["ip", "link", "del", self._names.switch], stderr=subprocess.DEVNULL, check=False)
        self._remove_cgroups()
        self._options_file.unlink(missing_ok=True)
        for name in ("run", "state", "spool"):
            shutil.rmtree(self.root / name, ignore_errors=True)

    def node_states(self) -> dict[str, str]:
        """The state of each node, however many partitions hold it (sinfo has a line for each of them)."""
        command = ["sinfo", "--noheader", "--Node", "--format=%N %T"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        return dict(line.split() for line in done.stdout.splitlines())

    def ready(self) -> bool:
        """Whether all machines are up and every node can take a job."""
        options = self.options
        if options is None or not all(machine.up for machine in self.machines.values()):
            return False
        states = self.node_states()
        return states.keys() == set(options.node_names) and set(states.values()) <= USABLE

    def wait_until_ready(self, seconds: float = 60) -> None:
        """Raises ClusterError when not all nodes take jobs after `seconds`."""
        end = time.monotonic() + seconds
        while not self.ready():
            if off := [name for name, machine in self.machines.items() if not machine.process]:
                raise ClusterError(f"off: {', '.join(off)}\n{self.logs()}")
            if time.monotonic() > end:
                raise ClusterError(f"not every node takes jobs after {seconds:g} s\n{self.logs()}")
            time.sleep(0.05)

    def logs(self, lines: int = 8) -> str:
        """The ends of all logs."""
        ends = {file: file.read_text(errors="replace").splitlines()[-lines:] for file in self.root.glob("log/*")}
        return "\n".join("\n".join([f"== {file}", *end]) for file, end in sorted(ends.items()) if end)

    def command(
        self,
        words: Sequence[str],
        *,
        machine: str = LOGIN,
        user: str = "root",
        cwd: Path | str = "/",
        env: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The command, to be started on the host, that runs `words` on a machine of the cluster."""
        options = self.options
        if options is None:
            raise ClusterError(f"{self.root}: no cluster is up here")
        home = "/root" if user == "root" else f"{self.root}/home/{user}"
        variables = {
            "HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "LANG": "C.UTF-8",
            "SLURM_CONF": self.env["SLURM_CONF"], **(env or {}),
        }  # fmt: skip
        number = 0 if user == "root" else options.user_ids[user]
        return self.machines[machine].inside(words, user=number, cwd=cwd, env=variables)

    def stop_controller(self) -> None:
        """End slurmctld as a service manager does; jobs go on."""
        pid = int((self.root / "run" / "slurmctld.pid").read_text())
        subprocess.run(self.command(["kill", str(pid)], machine=CONTROLLER), check=True)
        gone = ["bash", "-c", f"while kill -0 {pid}; do sleep 0.05; done"]
        subprocess.run(self.command(gone, machine=CONTROLLER), stderr=subprocess.DEVNULL, check=True, timeout=30)

    def start_controller(self) -> None:
        """Start slurmctld again and wait until every node has registered with it, which takes seconds.

        A registering slurmd connects to every step's socket. A step that has not called listen() yet is taken for dead,
        and the script of its job is deleted (`_handle_stray_script` in SLURM's stepd_api.c).
        """
        subprocess.run(self.command(["slurmctld"], machine=CONTROLLER), check=True)
        self.wait_until_ready()

    def _write_files(self, options: Options) -> None:
        shutil.rmtree(self.root / "log", ignore_errors=True)
        for name in FOLDERS:
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name in options.node_names:
            (self.root / "spool" / name).mkdir(exist_ok=True)
        for user, number in options.user_ids.items():
            home = self.root / "home" / user
            home.mkdir(exist_ok=True)
            os.chown(home, number, number)
        etc = self.root / "etc"
        texts = {
            "slurm.conf": configuration.slurm_conf(options, self.root),
            "gres.conf": configuration.gres_conf(options, self.root),
            "cgroup.conf": configuration.cgroup_conf(options),
            "hosts": configuration.hosts(options, self.root),
            # There is no DNS here: asking for it could only take its ten seconds to fail.
            "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
        }
        for file in ("passwd", "group"):
            lines = Path("/etc", file).read_text().splitlines()
            texts[file] = configuration.accounts(options, self.root, lines, groups=file == "group")
        for name, text in texts.items():
            (etc / name).write_text(text)
        _write_private(etc / "munge.key", secrets.token_bytes(128))
        (etc / "slurmdbd.conf").unlink(missing_ok=True)
        if options.accounting:
            _write_private(etc / "slurmdbd.conf", configuration.slurmdbd_conf(options, self.root).encode())
        for (_, number), file in configuration.devices(options, self.root).items():
            file.parent.mkdir(exist_ok=True)
            if not file.exists():
                # Major 60 is reserved for local use: no driver stands behind it.
                os.mknod(file, 0o666 | 0o020000, os.makedev(60, number))

    def _remove_cgroups(self) -> None:
        options = self.options
        if options and options.cgroup:
            for name in options.node_names:
                for top in Path("/sys/fs/cgroup").glob(f"*/slurm_{name}"):
                    for folder, _, _ in os.walk(top, topdown=False):
                        Path(folder).rmdir()


def _write_private(file: Path, content: bytes) -> None:
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_bytes(content)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit code is that of what was run, 1 for a cluster that fails, 4 for missing packages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True, help="the cluster's folder")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring a new cluster up and wait for it")
    up.add_argument("--nodes", type=int, default=2)
    up.add_argument("--gpus", default="", help="a100:4,rtx_3090:8,none: one per node, the last repeats")
    up.add_argument("--cpus", type=int, default=Options.cpus, help="cores that each node claims to have")
    up.add_argument("--memory", type=int, default=Options.memory, help="MiB that each node claims to have")
    up.add_argument("--node-timeout", type=int, default=Options.node_timeout, help="seconds to notice a lost node")
    up.add_argument("--accounting", action="store_true", help="with slurmdbd and its database, for sacct")
    up.add_argument("--cgroup", action="store_true", help="hold jobs to their memory and GPUs (cgroup v1)")
    up.add_argument("--line", dest="lines", action="append", default=[], help="one more line of slurm.conf")
    commands.add_parser("down", help="end it")
    commands.add_parser("status", help="machines and nodes")
    for name in ("power-off", "power-on"):
        commands.add_parser(name).add_argument("machine")
    run = commands.add_parser("run", help="run a command on one of the machines")
    run.add_argument("--on", default=LOGIN, help=f"machine (default {LOGIN})")
    run.add_argument("--user", default="root")
    run.add_argument("words", nargs="+")
    args = vars(parser.parse_args(argv))
    if lacking := missing():
        print(f"error: {lacking}", file=sys.stderr)
        return 4
    try:
        return _do(Cluster(args.pop("dir")), args.pop("command"), args)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _do(cluster: Cluster, command: str, args: dict[str, Any]) -> int:
    if command == "up":
        gpus = tuple(gpu for gpu in args.pop("gpus").split(",") if gpu)
        cluster.up(Options(gpus=gpus, lines=tuple(args.pop("lines")), **args))
        print(f"export SLURM_CONF={cluster.env['SLURM_CONF']}")
    elif command == "down":
        cluster.down()
    elif command == "status":
        for name, machine in cluster.machines.items():
            print(f"{name:8} {machine.address:15} {'on' if machine.process else 'OFF'}")
        print(*(f"{name} {state}" for name, state in cluster.node_states().items()), sep="\n")
    elif command == "run":
        return subprocess.run(
            cluster.command(args["words"], machine=args["on"], user=args["user"]), check=False
        ).returncode
    else:
        machine = cluster.machines.get(args["machine"])
        if machine is None:
            raise ClusterError(f"no machine {args['machine']!r} in {cluster.root}")
        machine.power_on() if command == "power-on" else machine.power_off()
    return 0


if __name__ == "__main__":
    sys.exit(main())
