"""What a build's output says about how far it is."""

from __future__ import annotations

import pytest

from dsrun.cli.build_wheel import line_of
from dsrun.wheel.compile.output import BuildEvent, BuildTracker, parse_line, split_line

# Lines as setuptools, torch 2.13 and ninja 1.13 print them.
COMPILE = (
    "[1/2] /tmp/b/bin/c++ -MMD -MF /tmp/b/x/csrc/adam/cpu_adam.o.d -Wall -DNDEBUG -I/tmp/b/csrc/includes "
    "-c -c /tmp/b/csrc/adam/cpu_adam.cpp -o /tmp/b/x/csrc/adam/cpu_adam.o -O3 '-DNAME=\"a b\"'"
)
NVCC = (
    "[12/21] /usr/local/cuda/bin/nvcc --generate-dependencies-with-compile --dependency-output /b/x.o.d -I/b "
    "-c -c /b/csrc/adam/multi_tensor_adam.cu -o /b/x.o -D__CUDA_NO_HALF_OPERATORS__"
)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("!begin", BuildEvent(kind="begin", label="L", name="L")),
        ("!end 0", BuildEvent(kind="end", label="L", name="L")),
        ("!end -15", BuildEvent(kind="end", label="L", name="L", code=-15)),
        (
            "building 'deepspeed.ops.adam.cpu_adam_op' extension",
            BuildEvent(kind="library", label="L", name="cpu_adam"),
        ),
        (
            "building 'deepspeed.inference.v2.kernelsinference_core_ops' extension",
            BuildEvent(kind="library", label="L", name="kernelsinference_core_ops"),
        ),
        (COMPILE, BuildEvent(kind="file", label="L", name="L", file="cpu_adam.cpp", done=1, total=2)),
        (NVCC, BuildEvent(kind="file", label="L", name="L", file="multi_tensor_adam.cu", done=12, total=21)),
        ("[1/2] it's no command", BuildEvent(kind="file", label="L", name="L", done=1, total=2)),
        ("copying deepspeed/env_report.py -> build/lib", None),
        ("[WARNING] Torch did not find cuda available", None),
        ("building 'x", None),
        ("", None),
    ],
)
def test_parse_build_output_lines(text, event):
    assert parse_line("L", text) == event


def test_split_labelled_line():
    assert split_line("cpu_adam\tg++\t-c\n") == ("cpu_adam", "g++\t-c")


def events(*texts, label="a"):
    return [parse_line(label, text) for text in texts]


def track(tracker, steps):
    for now, event in steps:
        tracker.note(event, now)


def test_time_left_from_speed_so_far():
    """The time left is what the rest takes at the speed so far."""
    tracker = BuildTracker(weights={"a": 1.0, "b": 3.0}, libraries={"a": 1, "b": 1})
    begin, library, half, end = events("!begin", "building 'x.a_op' extension", "[1/2] g++ -c a.cpp", "!end 0")
    assert tracker.left(5.0) is None
    track(tracker, [(100.0, begin), (101.0, library)])
    assert (tracker.done, tracker.left(105.0)) == (0.0, None)
    tracker.note(half, 110.0)
    assert tracker.done == pytest.approx(1 / 8)
    assert tracker.left(110.0) == pytest.approx(70.0)
    tracker.note(end, 120.0)
    assert tracker.done == pytest.approx(1 / 4)
    assert tracker.left(120.0) == pytest.approx(60.0)
    assert tracker.seconds() == {"a": 20.0}


def test_progress_through_several_libraries():
    tracker = BuildTracker(weights={"a": 1.0}, libraries={"a": 2})
    lines = [
        ("!begin", 0.0),
        ("building 'x.pin_memory_op' extension", 0.0),
        ("[1/2] g++ -c a.cpp", 0.25),
        ("[2/2] g++ -c b.cpp", 0.5),
        ("building 'x.async_io_op' extension", 0.5),
        ("[1/2] g++ -c c.cpp", 0.75),
        ("[2/2] g++ -c d.cpp", 1.0),
        ("!end 0", 1.0),
    ]
    for text, done in lines:
        tracker.note(parse_line("a", text), 1.0)
        assert tracker.done == pytest.approx(done), text


def test_progress_never_exceeds_one():
    """More libraries than expected do not take the progress beyond the whole."""
    tracker = BuildTracker(weights={"a": 1.0}, libraries={"a": 1})
    for event in events("!begin", *["building 'x.y_op' extension", "[1/1] g++ -c a.cpp"] * 2):
        tracker.note(event, 1.0)
    assert tracker.done == 1.0
    assert tracker.left(2.0) == 0.0


def test_progress_lines_without_terminal():
    tracker = BuildTracker(weights={"a": 1.0, "b": 1.0}, libraries={"a": 1, "b": 1})
    said = []
    steps = [
        ("!begin", 0.0),
        ("building 'deepspeed.ops.adam.cpu_adam_op' extension", 1.0),
        ("[1/2] g++ -c cpu_adam.cpp", 30.0),
        ("!end 0", 60.0),
        ("!end 1", 61.0),
    ]
    for text, now in steps:
        event = parse_line("a", text)
        tracker.note(event, now)
        said.append(line_of(event, tracker, now))
    assert said == [
        None,
        "cpu_adam: compiling",
        "a: 1 of 2 files, cpu_adam.cpp; about 90 s left",
        "a: done in 60 s; about 60 s left",
        "a: failed",
    ]
