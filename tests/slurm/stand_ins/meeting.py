# ruff: noqa: PTH118, PTH123
"""How the stand-ins of ranks and launchers meet, and what they do then.

Each rank that has met the others adds a line to `ranks.jsonl` in the folder of the submission; `meeting` there says
how long they wait, and what the training does then: "fails", "saves" on a signal, or ends at once.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket


class Failure(Exception):
    """What the real program would have ended with."""


def meet(
    host: str, port: int, *, serves: bool, key: str, place: int | None, size: int, count: int = 1
) -> tuple[str, int, list[int]]:
    """Meet `size` others that have the same key, at the address of that one which serves.

    Returns what identifies this meeting, one's own place, and the counts of all. Who has no place gets one.
    """
    import socket

    if not 0 < port < 65536:
        raise Failure(f"{port} is no port")
    end = time.monotonic() + float(meeting_of_job()["patience_s"])
    listener = None
    if serves:
        try:
            listener = socket.create_server(("", port), backlog=64)
        except OSError as error:
            # c10d goes on as a client where another process of the node serves already.
            if place is not None:
                raise Failure(f"port {port}: {error.strerror}") from error
    connection = _connect(host, port, end)
    connection.sendall(f"{key} {'any' if place is None else place} {size} {count}\n".encode())
    if listener:
        _serve(listener, key, size, end)
    connection.settimeout(max(0.1, end - time.monotonic()))
    words = _line(connection)
    if len(words) < 3:
        raise Failure(f"not all of {size} have come to {host}:{port}")
    if words[0] == "error":
        raise Failure(" ".join(words[1:]))
    return words[0], int(words[1]), [int(word) for word in words[2:]]


def _connect(host: str, port: int, end: float) -> socket.socket:
    import socket

    while True:
        try:
            return socket.create_connection((host, port), timeout=max(0.1, end - time.monotonic()))
        except OSError as error:
            if time.monotonic() > end or isinstance(error, socket.gaierror):
                raise Failure(f"nobody answers at {host}:{port} ({error})") from error
            time.sleep(0.02)


def _serve(listener: socket.socket, key: str, size: int, end: float) -> None:
    """Answer when all have come; those with another key, or more than `size`, get no answer."""
    come: list[tuple[str, str, int, socket.socket]] = []
    others = []
    while len(come) < size:
        listener.settimeout(max(0.05, end - time.monotonic()))
        try:
            one, _ = listener.accept()
        except TimeoutError:
            return
        their_key, place, their_size, count = _line(one)
        if their_key == key:
            come.append((place, their_size, int(count), one))
        else:
            others.append(one)
    given = list(range(size)) if any(place == "any" for place, *_ in come) else [int(place) for place, *_ in come]
    wrong = sorted(given) != list(range(size)) or any(int(their_size) != size for _, their_size, _, _ in come)
    counts = [str(count) for _, (_, _, count, _) in sorted(zip(given, come, strict=True), key=lambda pair: pair[0])]
    for place, (*_, one) in zip(given, come, strict=True):
        answer = ["error", "places", *map(str, given)] if wrong else [f"{key}-{os.getpid()}", str(place), *counts]
        try:
            one.sendall(" ".join(answer).encode() + b"\n")
        except OSError:
            continue


def _line(connection: socket.socket) -> list[str]:
    """The words of the line that comes from there; none, when nothing comes any more."""
    said = b""
    try:
        while not said.endswith(b"\n") and (more := connection.recv(4096)):
            said += more
    except OSError:
        return []
    return said.decode().split()


def train(
    world_id: str,
    size: int,
    ranks: list[tuple[int, int]],
    arguments: list[str],
    *,
    launcher: bool = False,
    host: str | None = None,
) -> None:
    """Train on the GPUs of these ranks (rank, local rank), and write down that they have met."""
    meeting = meeting_of_job()
    if meeting["conda"] == "True" and "CONDA_DEFAULT_ENV" not in os.environ:
        raise Failure("No module named 'torch'")
    if quoted := [word for word in arguments if word.startswith("~/")]:
        raise Failure(f"No such file or directory: {quoted[0]}")
    if "" in arguments:
        raise Failure("invalid float value: ''")
    gpus = visible_gpus()
    if not gpus:
        raise Failure("no CUDA device")
    if over := [local for _, local in ranks if local >= len(gpus)]:
        raise Failure(f"local rank {over[0]}: invalid device ordinal")
    lines: list[dict[str, object]] = [
        {"world": world_id, "rank": rank, "size": size, "gpu": f"{host or host_name()}:{gpus[local]}"}
        for rank, local in ranks
    ]
    time.sleep(float(meeting["training_s"]))
    _write(lines)
    if meeting["then"] == "fails":
        raise Failure("loss is nan")
    if meeting["then"] == "saves":
        _save_on_a_signal(lines, meeting, launcher)


def _save_on_a_signal(lines: list[dict[str, object]], meeting: dict[str, str], launcher: bool) -> None:
    """A program saves on USR1 and TERM; the launchers hand TERM on to it, and die of USR1."""
    import signal

    come: list[int] = []
    for number in (signal.SIGTERM, *(() if launcher else (signal.SIGUSR1,))):
        signal.signal(number, lambda number, _: come.append(number))
    _write([{"ready": line["rank"]} for line in lines])
    end = time.monotonic() + float(meeting["signal_patience_s"])
    while not come:
        if time.monotonic() > end:
            raise Failure("no signal has come")
        time.sleep(0.02)
    # The end of the job kills a program that is about to save.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(float(meeting["saving_s"]))
    _write([{"saved": line["rank"]} for line in lines])


def host_name() -> str:
    return os.uname().nodename


def visible_gpus() -> list[str]:
    return [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]


def meeting_of_job() -> dict[str, str]:
    with open(os.path.join(os.environ["SLURM_SUBMIT_DIR"], "meeting")) as file:
        return dict(line.split() for line in file)


def _write(lines: list[dict[str, object]]) -> None:
    """As lines of JSON; no value here has a quote or a backslash."""
    text = ""
    for line in lines:
        facts = {"job": os.environ.get("SLURM_JOB_ID", ""), **line}
        values = (f'"{name}": ' + (str(each) if isinstance(each, int) else f'"{each}"') for name, each in facts.items())
        text += "{" + ", ".join(values) + "}\n"
    with open(os.path.join(os.environ["SLURM_SUBMIT_DIR"], "ranks.jsonl"), "a") as file:
        file.write(text)
