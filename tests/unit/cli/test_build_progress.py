"""The progress bars of `dsrun build-wheel` on a terminal."""

from __future__ import annotations

import io
import re

from rich.console import Console

from dsrun.cli.build_wheel import Bars
from dsrun.wheel.compile.output import Tracker, parse_line


def test_build_progress_bars_show_file_and_time_left():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    tracker = Tracker(weights={"cpu_adam": 1.0, "utils": 1.0}, libraries={"cpu_adam": 1, "utils": 1})
    lines = [
        "!begin",
        "building 'deepspeed.ops.adam.cpu_adam_op' extension",
        "[1/2] g++ -c csrc/adam/cpu_adam.cpp",
        "copying x",
    ]
    bars = Bars(console)
    # No redraw between the steps of this test.
    bars._progress.live.auto_refresh = False
    with bars:
        for number, line in enumerate(lines):
            event = parse_line("cpu_adam", line)
            if event:
                tracker.note(event, float(number))
                bars.watch(event, tracker)
        bars._progress.refresh()
        seen = screen.getvalue()
        end = parse_line("cpu_adam", "!end 0")
        tracker.note(end, 60.0)
        bars.watch(end, tracker)
        screen.truncate(0)
        bars._progress.refresh()
        after = screen.getvalue()
    assert re.search(r"cpu_adam\s.*cpu_adam\.cpp 1/2", seen)
    assert re.search(r"all\s.*about .* left", seen)
    assert "cpu_adam.cpp" not in after
