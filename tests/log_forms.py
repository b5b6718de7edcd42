"""One log as it reaches a person: behind the prefixes of launchers, containers, CI systems and loggers, in JSON, in
HTML, in a post; and mutilated."""

import html
import json
from collections.abc import Callable

Form = Callable[[str], str]
_DAY = "2026-11-21"


def _each(prefix: Callable[[int, str], str]) -> Form:
    """Every line behind what `prefix` makes of its number and text; spaces at a line's end are cut off, as often."""

    def form(text: str) -> str:
        lines = text.removesuffix("\n").split("\n")
        return "".join(f"{prefix(number, line)}{line}".rstrip(" ") + "\n" for number, line in enumerate(lines))

    return form


def _fixed(prefix: str) -> Form:
    return _each(lambda number, line: prefix)


def _clock(number: int) -> str:
    return f"04:{number // 60 % 60:02}:{number % 60:02}"


def _records(record: Callable[[int, str], object], begin: str = "", between: str = "") -> Form:
    """Every line as a record of JSON."""

    def form(text: str) -> str:
        lines = text.removesuffix("\n").split("\n")
        records = (json.dumps(record(number, line), ensure_ascii=False) for number, line in enumerate(lines))
        return "".join(f"{begin if number == 0 else between}{each}\n" for number, each in enumerate(records))

    return form


def _in_tags(text: str) -> str:
    return "".join(f"{html.escape(line)}<br>\n" for line in text.removesuffix("\n").split("\n"))


def _in_code(text: str) -> str:
    inner = html.escape(text.removesuffix("\n"))
    return f"<pre><code>{inner}</code></pre>\n"


def _stacked(*forms: Form) -> Form:
    def form(text: str) -> str:
        for each in forms:
            text = each(text)
        return text

    return form


PREFIXES: dict[str, Form] = {
    "quote": _fixed("> "),
    "quote twice": _fixed("> > "),
    "comment": _fixed("# "),
    "tab": _fixed("\t"),
    "bullet": _fixed("- "),
    "star": _fixed("* "),
    "round bullet": _fixed("• "),
    "indentation": _fixed("    "),
    "indentation of three": _fixed("   "),
    "rank": _fixed("[rank1]: "),
    "trainer": _fixed("[trainer0]: "),
    "trainer without a space": _fixed("[trainer0]:"),
    "torchrun tee": _fixed("[default3]:"),
    "srun label": _fixed("3: "),
    "srun label of many": _each(lambda number, line: f"{12 if number else 3:2}: "),
    "pdsh": _fixed("node01: "),
    "mpirun": _fixed("[1,3]<stderr>:"),
    "ray": _each(lambda number, line: "(RayTrainWorker pid=4127, ip=10.0.0.7) "),
    "journald": _each(lambda number, line: f"Nov 21 {_clock(number)} gpu-node-07 python3[4127]: "),
    "syslog": _each(lambda number, line: f"{_DAY}T{_clock(number)}.{number:06}+00:00 gpu07 train[4127]: "),
    "cri": _each(lambda number, line: f"{_DAY}T{_clock(number)}.{123456789 + number}Z stderr F "),
    "cri of two streams": _each(
        lambda number, line: f"{_DAY}T{_clock(number)}.{123456789 + number}Z {('stdout', 'stderr')[number % 2]} F "
    ),
    "kubectl prefix": _fixed("[pod/trainer-0/main] "),
    "kubectl timestamps": _each(lambda number, line: f"{_DAY}T{_clock(number)}.{123456789 + number}Z "),
    "stern": _fixed("trainer-worker-0 pytorch "),
    "docker compose": _fixed("trainer-1  | "),
    "docker compose of two": _each(lambda number, line: "trainer-12  | " if number else "trainer-1   | "),
    "gitlab": _each(lambda number, line: f"{_DAY}T{_clock(number)}.{number:06}Z 01O "),
    "github": _each(lambda number, line: f"{_DAY}T{_clock(number)}.{1234567 + number}Z "),
    "gh run view": _each(lambda number, line: f"train\tRun training\t{_DAY}T{_clock(number)}.{1234567 + number}Z "),
    "sagemaker": _fixed("[1,mpirank:0,algo-1]<stderr>:"),
    "azureml": _each(lambda number, line: f"[{_DAY}T{_clock(number)}.{number:06}] [trainer:0] "),
    "loguru": _each(lambda number, line: f"{_DAY} {_clock(number)}.{number:03} | INFO     | launcher:pump:41 - "),
    "logging": _each(lambda number, line: f"{_DAY} {_clock(number)},{number:03} - launcher - INFO - "),
    "clock": _each(lambda number, line: f"[{_clock(number)}] "),
    "cloudwatch": _each(lambda number, line: f"{_DAY}T{_clock(number)}.{number:03}Z algo-1-8f3kq "),
    "kubectl of ranks": _stacked(_fixed("[rank1]: "), _fixed("[pod/trainer-0/main] ")),
    "cri of compose": _stacked(
        _fixed("trainer-1  | "), _each(lambda number, line: f"{_DAY}T{_clock(number)}.{123456789 + number}Z stdout F ")
    ),
    "quoted journal": _stacked(
        _each(lambda number, line: f"Nov 21 {_clock(number)} gpu07 python3[4127]: "), _fixed("> ")
    ),
}
WRAPPINGS: dict[str, Form] = {
    "docker": _records(
        lambda number, line: {"log": f"{line}\n", "stream": "stderr", "time": f"{_DAY}T{_clock(number)}.123Z"}
    ),
    "kaggle": _records(
        lambda number, line: {"stream_name": "stderr", "time": 12.5 + number, "data": f"{line}\n"}, "[", ","
    ),
    "json logger": _records(
        lambda number, line: {"asctime": f"{_DAY} {_clock(number)}", "levelname": "INFO", "message": line}
    ),
    "docker of ranks": _stacked(
        _fixed("[rank1]: "),
        _records(lambda number, line: {"log": f"{line}\n", "stream": "stderr", "time": f"{_DAY}T{_clock(number)}Z"}),
    ),
    "cri of json": _stacked(
        _records(lambda number, line: {"level": "info", "ts": number, "msg": line}),
        _each(lambda number, line: f"{_DAY}T{_clock(number)}.{123456789 + number}Z stdout F "),
    ),
    "html lines": _in_tags,
    "html code": _in_code,
}
FORMS = PREFIXES | WRAPPINGS


def last_lines(text: str) -> str:
    """The last three lines that say something."""
    return "".join(f"{line}\n" for line in [line for line in text.split("\n") if line.strip()][-3:])


def first_half(text: str) -> str:
    lines = text.removesuffix("\n").split("\n")
    return "".join(f"{line}\n" for line in lines[: (len(lines) + 1) // 2])


def without_frames(text: str) -> str:
    """Without tracebacks' headers, frames and the source below them."""
    kept, in_frame = [], False
    for line in text.removesuffix("\n").split("\n"):
        bare = line.partition("]: ")[2] if line.startswith("[rank") else line
        in_frame = bare.startswith(("Traceback (most", '  File "')) or (in_frame and bare.startswith("    "))
        if not in_frame:
            kept.append(line)
    return "".join(f"{line}\n" for line in kept)


def interleaved(text: str) -> str:
    """Two ranks that write the same, line by line."""
    lines = text.removesuffix("\n").split("\n")
    return "".join(f"[rank{rank}]: {line}\n" for line in lines for rank in (0, 1))


def glued_bars(text: str) -> str:
    """A progress bar before each traceback, and before the last line."""
    bar = " 12%|█▏        | 12/100 [00:03<00:21,  4.05it/s]"
    lines = text.removesuffix("\n").split("\n")
    last = max((at for at, line in enumerate(lines) if line.strip()), default=0)
    return "".join(
        f"{bar if at == last or line.startswith('Traceback (most') else ''}{line}\n" for at, line in enumerate(lines)
    )


MUTILATIONS: dict[str, Form] = {
    "last three lines": last_lines,
    "first half": first_half,
    "without frames": without_frames,
    "interleaved": interleaved,
    "glued bars": glued_bars,
    "escaped": html.escape,
}
