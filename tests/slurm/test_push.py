"""`dsrun wheel push` inside an allocation: onto the disk of every node, and into the environment of each."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import site
import sys

from tests.tiny_wheels import compiled, fake_deepspeed

PYTHON = "/tmp/push-env/bin/python"  # /tmp is each machine's own
ENVIRONMENT = f"""\
{shlex.quote(sys.executable)} -m venv --without-pip /tmp/push-env
cd /tmp/push-env/lib/python3*/site-packages
printf '%s\\n' {shlex.join(site.getsitepackages())} > outer.pth
"""


def test_wheel_push_to_four_nodes(ada, place, cluster):
    torch = ".".join(importlib.metadata.version("torch").split(".")[:2])
    library = compiled(place / "c", "int twice(int x) { return 2 * x; }")
    wheel = fake_deepspeed(place, {"tiny": library}, torch)
    wheel.chmod(0o644)
    words = [
        sys.executable,
        "-m",
        "dsrun",
        "wheel",
        "push",
        wheel.name,
        "--python",
        PYTHON,
        "--to",
        "/tmp/wheels",
        # Many steps at once on few cores outlive the seconds that this cluster's credentials hold.
        "--at-once",
        "1",
    ]
    (place / "job.sh").write_text(
        # A node that other tests have switched off and on may answer its first step later than the seconds that
        # this cluster's credentials hold.
        "for attempt in 1 2 3 4 5 6; do srun true && break; sleep 5; done\n"
        f"srun --export=ALL sh -c {shlex.quote(ENVIRONMENT)} && {shlex.join([*words, '--format', 'json'])}\n"
        f"{shlex.join(words)}\n"
    )
    done = ada.run("salloc", "--quiet", "-N4", "--ntasks-per-node=1", "sh", "-e", "job.sh", cwd=place)
    told, end = json.JSONDecoder().raw_decode(done.stdout)
    assert [each["node"] for each in told["nodes"]] == ["node1", "node2", "node3", "node4"]
    assert [each["installed"] for each in told["nodes"]] == ["installed"] * 4
    assert [each["findings"] for each in told["nodes"]] == [[]] * 4
    assert told["findings"] == []
    for node in ("node1", "node2", "node3", "node4"):
        disk = cluster.root / "disk" / node / "tmp"
        assert [file.name for file in (disk / "wheels").iterdir()] == [wheel.name]
        assert list(disk.glob("push-env/lib/python3*/site-packages/deepspeed/ops/tiny_op.so"))
    again = done.stdout[end:].splitlines()
    assert sum("already there" in row for row in again) == 4
