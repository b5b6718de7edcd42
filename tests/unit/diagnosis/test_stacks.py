"""Where a process stands, from what py-spy, faulthandler and the kernel write of it."""

from __future__ import annotations

import pytest

from dsrun.diagnosis.stacks import StackFrame, StackPlace, parse_stacks, place_of

TORCH = "/venv/lib/python3.11/site-packages/torch"
PY_SPY = """\
Process 16384: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 16404 (idle): "QueueFeederThread"
    Condition.wait (threading.py:327)
    Thread._bootstrap (threading.py:1002)
Thread 16384 (idle): "MainThread"
    all_gather (torch/distributed/distributed_c10d.py:4287)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    all_gather_object (torch/distributed/distributed_c10d.py:3513)
    evaluate.<locals>.<lambda> (eval.py:25)
    <module> (train.py:30)
"""
FAULTHANDLER = f"""\
some words of the log
Thread 0x00007f4cfc5ff6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f4d1ac06b80 (most recent call first):
  File "{TORCH}/utils/data/dataloader.py", line 1291 in _try_get_data
  File "{TORCH}/utils/data/dataloader.py", line 725 in __next__
  File "/home/me/train.py", line 14 in main
  File "/home/me/train.py", line 30 in <module>
"""


BATON = ["FileBaton.wait torch/utils/file_baton.py:50", "_jit_compile torch/utils/cpp_extension.py:2400"]


def stack(*frames: str) -> str:
    """As py-spy writes it: "function file:line", the innermost first."""
    lines = [f"    {function} ({place})" for function, place in (frame.split(" ") for frame in frames)]
    return "\n".join(['Thread 1 (idle): "MainThread"', *lines, "    main (job/train.py:9)"])


def kernel(*, wchan: str = "0", syscall: str = "running", state: str = "S (sleeping)") -> str:
    return f"== status\nName: python\nState:\t{state}\n== wchan\n{wchan}\n== syscall\n{syscall}\n== cmdline\npython"


def test_threads_and_frames_of_py_spy():
    feeder, main = parse_stacks(PY_SPY)
    assert (feeder.main, main.main) == (False, True)
    assert main.frames[1] == StackFrame("wrapper", "torch/distributed/c10d_logger.py", 83)
    assert main.frames[3] == StackFrame("<lambda>", "eval.py", 25)


def test_main_thread_of_faulthandler_is_the_last():
    feeder, main = parse_stacks(FAULTHANDLER)
    assert (feeder.main, main.main) == (False, True)
    assert main.frames[0] == StackFrame("_try_get_data", f"{TORCH}/utils/data/dataloader.py", 1291)


def test_no_threads_in_other_text():
    assert parse_stacks("Error: Permission Denied\nTry running again with elevated permissions\n") == []


def test_collective_is_named_as_the_program_called_it():
    assert place_of(PY_SPY) == StackPlace("collective", "all_gather_object", "<lambda> (eval.py:25)")


@pytest.mark.parametrize(
    ("frames", "process", "kind", "name"),
    [
        (["all_reduce torch/distributed/distributed_c10d.py:3252"], "", "collective", "all_reduce"),
        (
            [
                "barrier torch/distributed/distributed_c10d.py:4",
                "wrapper torch/distributed/c10d_logger.py:83",
                "barrier deepspeed/comm/torch.py:3",
                "barrier deepspeed/comm/comm.py:400",
            ],
            "",
            "collective",
            "barrier",
        ),
        (["monitored_barrier torch/distributed/distributed_c10d.py:5435"], "", "collective", "monitored_barrier"),
        (["wait deepspeed/runtime/zero/partition_parameters.py:70"], "", "collective", "all_gather"),
        (["synchronize torch/cuda/streams.py:99"], "", "gpu", "torch.cuda.synchronize"),
        (
            ["_engine_run_backward torch/autograd/graph.py:800", "backward torch/_tensor.py:5"],
            kernel(wchan="futex_do_wait"),
            "collective",
            "all_reduce of gradients in the backward pass",
        ),
        (["_sync_buffers torch/nn/parallel/distributed.py:5"], "", "collective", "broadcast of DDP's buffers"),
        (["save torch/serialization.py:900"], "", "files", "torch.save"),
        (["wait threading.py:327", "get queue.py:171"], "", "lock", "lock.acquire"),
        (BATON, "", "lock", "the lock of another build of the operation"),
        (BATON, "== build locks\n/x/lock\n", "lock", "the lock of another build of the operation, /x/lock"),
        (["_wait subprocess.py:2000", "wait subprocess.py:1264"], "", "child", "a child process"),
        (["read /usr/lib/python3.11/site-packages/urllib3/response.py:5"], "", "network", "an HTTP request"),
        ([], kernel(wchan="hrtimer_nanosleep"), "sleep", "time.sleep at main (job/train.py:9)"),
        ([], kernel(syscall="230 0x1 0x1"), "sleep", "time.sleep at main (job/train.py:9)"),
        ([], kernel(wchan="futex_wait_queue"), "lock", "lock.acquire at main (job/train.py:9)"),
        ([], kernel(wchan="nfs_wait_bit_killable"), "files", "file I/O at main (job/train.py:9)"),
        ([], kernel(), "code", "main (job/train.py:9)"),
        ([], kernel(state="T (stopped)"), "stopped", "stopped (SIGSTOP)"),
    ],
)
def test_place_of_main_thread(frames, process, kind, name):
    found = place_of(stack(*frames), process)
    assert (found.kind, found.name) == (kind, name)


def test_call_of_collective_is_told_without_what_passes_it_on():
    """Under the clock of the step times, DeepSpeed and Accelerate two calls still differ."""
    frames = [
        "timed dsrun/train/loop/step_times.py:43",
        "all_reduce torch/distributed/distributed_c10d.py:3252",
        "all_reduce deepspeed/comm/comm.py:710",
        "allreduce_bucket deepspeed/runtime/zero/stage_1_and_2.py:2384",
        "training_step dsrun/train/loop/trainer.py:196",
    ]
    assert place_of(stack(*frames)) == StackPlace("collective", "all_reduce", "training_step (loop/trainer.py:196)")


def test_loader_that_waits_in_a_queue_is_the_loader():
    frames = ["wait threading.py:3", "get multiprocessing/queues.py:113", "__next__ torch/utils/data/dataloader.py:7"]
    assert place_of(FAULTHANDLER).name == place_of(stack(*frames[1:])).name == "DataLoader.__next__"


def test_collective_inside_a_loader_is_the_collective():
    """The innermost counts: the loader waits for other ranks."""
    frames = ["broadcast torch/distributed/distributed_c10d.py:5", "__next__ torch/utils/data/dataloader.py:7"]
    assert place_of(stack(*frames)).name == "broadcast"


def test_no_stack_and_no_state_is_unknown():
    assert place_of("", kernel()).kind == "unknown"


def test_damaged_stacks_raise_nothing():
    for end in range(len(FAULTHANDLER)):
        place_of(FAULTHANDLER[:end])
