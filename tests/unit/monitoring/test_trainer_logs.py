"""What trainers print, read: tests/data/trainer_logs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dsrun.monitoring.trainer_logs.parser import TrainerLog
from dsrun.monitoring.trainer_logs.status import BACKLOG, LogReader, history_of_log, status_of_log

LOGS = Path(__file__).parents[2] / "data" / "trainer_logs"


def read(name: str) -> TrainerLog:
    log = TrainerLog()
    log.feed((LOGS / f"{name}.txt").read_bytes().decode().split("\n"))
    return log


@pytest.mark.parametrize(
    ("name", "step", "max_steps", "loss", "lr"),
    [
        ("huggingface-5", 60, 60, 4.476, 8.333e-07),
        ("huggingface-4", 300, 3000, 2.01, 4.7e-05),
        ("deepspeed", 20, None, 2.3456, 0.001),
        ("megatron", 202, 250000, 2.413736, 1.515e-05),
        ("torchtitan", 20, 1000, 7.0281, None),
        ("nanogpt", 10, None, 3.2354, None),
        ("llama-factory", 20, 300, 1.1, 2e-05),
        ("tqdm", 123, 1000, None, None),
    ],
)
def test_last_figures_of_each_trainer(
    name: str, step: int, max_steps: int | None, loss: float | None, lr: float | None
) -> None:
    log = read(name)
    assert (log.step, log.max_steps, log.figures.get("loss"), log.figures.get("lr")) == (step, max_steps, loss, lr)


def test_steps_of_the_trainers_dicts_come_from_its_bar() -> None:
    """Transformers 5 writes no step and quotes its numbers: the bar that is drawn anew below a dict has its step."""
    log = read("huggingface-5")
    losses = [(record["step"], record["loss"]) for record in log.steps]
    assert losses[:3] == [(5, 4.607), (10, 4.586), (15, 4.566)]
    assert losses[-1] == (55, 4.477) or losses[-1][0] == 60
    assert log.evaluations[-1]["eval_loss"] == 4.475
    assert log.has_ended


def test_bars_of_evaluations_and_downloads_are_not_training() -> None:
    """The bar of an evaluation has another total than that of training, those of other work have a name."""
    log = TrainerLog()
    log.feed(["Map: 100%|██| 9000/9000 [00:01<00:00, 900.00 examples/s]", " 10%|█  | 20/200 [00:10<01:30,  2.00it/s]"])
    log.feed([" 50%|███  | 25/50 [00:01<00:01, 25.0it/s]\r 11%|█  | 22/200 [00:20<01:30,  1.00s/it]"])
    assert (log.step, log.max_steps, log.step_s) == (22, 200, 1.0)


@pytest.mark.parametrize(
    ("bar", "step", "loss"),
    [
        ("Epoch 0:  50%|#  | 10/20 [00:02<00:02, 5.0it/s, loss=0.3]", None, 0.3),
        ("Epoch 1:  50%|#  | 10/20 [00:02<00:02, 5.0it/s, v_num=0, val_loss=9.0, train_loss_step=0.3]", None, 0.3),
        ("train epoch 2:  50%|#  | 10/20 [00:02<00:02, 5.0it/s, loss=0.3]", None, 0.3),
        (" 50%|#  | 10/20 [00:02<00:02, 5.0it/s, loss=0.3]", 10, 0.3),
        ("Validation DataLoader 0:  50%|#  | 10/20 [00:02<00:02, 5.0it/s, loss=0.3]", None, None),
    ],
)
def test_loss_behind_a_bar(bar: str, step: int | None, loss: float | None) -> None:
    """The steps of an epoch's bar are not those of the run."""
    log = TrainerLog()
    log.feed([f"\r{bar}\r{bar}"])
    assert (log.step, log.figures.get("loss"), [each.get("counted") for each in log.steps]) == (
        step,
        loss,
        [None] if step else [True, True] if loss else [],
    )


def test_speeds() -> None:
    assert read("megatron").step_s == pytest.approx(139.2214)
    assert read("nanogpt").step_s == pytest.approx(0.02451)
    assert read("tqdm").step_s == pytest.approx(1 / 1.2)
    torchtitan = read("torchtitan")
    assert torchtitan.figures["tokens_per_s"] == 7100
    assert torchtitan.figures["mfu"] == pytest.approx(0.4123)
    assert status_of_log(torchtitan, Path("x")).step_s == 1.0  # two lines, ten steps and ten seconds apart
    assert read("deepspeed").figures["samples_per_s"] == 65.0


def test_losses_of_evaluations_are_not_those_of_training() -> None:
    log = TrainerLog()
    log.feed(
        ["step 10  loss 2.5", "step 10  evaluation  loss 9.0", "validation loss at iteration 10 | lm loss value: 8.0"]
    )
    assert log.figures["loss"] == 2.5
    assert [record["loss"] for record in log.steps] == [2.5]


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': 'cross_entropy', 'lr': 0.1}",
        '{"loss": {"name": "ce"}}',
        "{'loss': None}",
        "loss: InfoNCE",
        "loss=info_nce",
        "loss: inf-nce",
        "loss: information bottleneck",
        "--loss nanogpt",
    ],
)
def test_name_of_a_loss_is_no_figure(line):
    log = TrainerLog()
    log.feed([line])
    assert (log.loss_is_finite, log.steps) == (True, [])


def test_loss_that_is_not_finite_is_noticed() -> None:
    log = TrainerLog()
    log.feed(["{'loss': 2.0, 'epoch': 0.1}"])
    assert log.loss_is_finite
    log.feed(["{'loss': nan, 'grad_norm': nan, 'epoch': 0.2}"])
    assert not log.loss_is_finite
    assert status_of_log(log, Path("x")).loss is None


def test_a_restarted_trainer_goes_back() -> None:
    log = TrainerLog()
    log.feed([f"step: {step}  loss: {step}.5" for step in (10, 20, 30, 20)])
    assert [record["step"] for record in history_of_log(log, Path("x")).steps] == [10, 20]


def test_arbitrary_text_has_no_figures() -> None:
    log = TrainerLog()
    log.feed(["Loading step functions", "loss scale: 65536", "{'a': 1}", "{broken 'loss': ", "steps are 5% lossless"])
    assert (log.step, log.figures, log.steps) == (None, {}, [])


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    """Only whole lines count, and a file that was replaced by a shorter one is read from its beginning."""
    path = tmp_path / "train.log"
    path.write_text("step: 1  loss: 5.0\nstep: 2  lo")
    reader = LogReader(path)
    reader.read()
    assert reader.log.step == 1
    with path.open("a") as file:
        file.write("ss: 4.0\n")
    reader.read()
    assert [record["loss"] for record in reader.log.steps] == [5.0, 4.0]
    path.write_text("step: 7  loss: 1.0\n")
    reader.read()
    assert [record["step"] for record in reader.log.steps] == [7]


def test_of_a_long_log_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("step: 1  loss: 5.0\n" + "x" * BACKLOG + "\nstep: 2  loss: 4.0\n")
    reader = LogReader(path)
    reader.read()
    assert [record["step"] for record in reader.log.steps] == [2]


def test_state_of_a_log_follows_from_its_end_and_age(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("step: 1/10  loss: 5.0\n")
    written = path.stat().st_mtime

    def state_after(seconds: float) -> str:
        reader = LogReader(path)
        reader.read()
        return reader.status(written + seconds).state

    assert (state_after(1), state_after(1000)) == ("training", "silent")
    path.write_text("step: 10/10  loss: 5.0\n")
    written = path.stat().st_mtime
    assert state_after(100) == "finished"
    path.write_text("step: 4/10  loss: 5.0\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB.\n")
    written = path.stat().st_mtime
    assert (state_after(1), state_after(100)) == ("training", "failed")


DIGITS = "9" * 5000


@pytest.mark.parametrize(
    "line",
    [
        "1%|x| 3/3 [00:01<00:00, ...it/s]",
        "1%|x| 3/3 [00:01<00:00, 0.0it/s]",
        f"1%|x| {DIGITS}/1 [a]",
        f"1%|x| 1/{DIGITS} [00:01<00:00,  1.98it/s]",
        f"1%|x| 3/3 [00:01<00:00, {DIGITS}s/it]",
        "Num Epochs = ,",
        "Num Epochs = 0",
        f"{{'loss': {DIGITS[:400]}, 'step': 2}}",
        f'{{"loss": 1.0, "step": 1e300, "max_steps": {DIGITS[:400]}}}',
        '{"loss": 1.0, "step": -5}',
        "{'loss': 1, (1,[2]): 3}",
        "{'loss': 1, }{: 3}",
        "step 3/9 loss 1e308 time 1e308ms",
        f"step {DIGITS} loss 1",
        "epoch 1e300 step ,/, loss --1",
    ],
)
def test_lines_that_only_look_like_a_trainers(line: str, tmp_path: Path) -> None:
    """They come from any program, and are read in the supervisor of its run."""
    log = TrainerLog()
    log.feed(["Num Epochs = 3", "step 2/30 loss 0.5", line, "step 3/30 loss 0.25"])
    status = status_of_log(log, tmp_path / "log")
    assert (log.step, log.figures["loss"]) == (3, 0.25)
    assert status.eta_s is None or status.eta_s < 1e60


@pytest.mark.parametrize("text", ["loss", "training loss", "lr=", "step 5 ", "epoch", "it/s"])
@pytest.mark.parametrize("part", [" ", "1,", "1", ".", "{'", "%|", "step ", "1%|", "loss: [", "-1e", "eval", "1 "])
def test_time_of_a_long_line_is_linear(text: str, part: str) -> None:
    """Seconds to minutes, in which the supervisor hears nothing, where it is not."""
    line = text + part * (8000 // len(part)) + "x"
    begun = time.process_time()
    TrainerLog().feed([line] * 3)
    assert time.process_time() - begun < 1.5


def test_figures_behind_a_line_without_end_count() -> None:
    log = TrainerLog()
    log.feed(["step " + "x" * 1_000_000, "step 3 loss 0.25"])
    assert log.step == 3


@pytest.mark.parametrize("mark", ["", "[rank1]: "])
def test_source_of_a_traceback_has_no_figures(mark: str) -> None:
    """Nor has its exception."""
    trace = """Traceback (most recent call last):
  File "/a/t.py", line 9, in <module>
    f(step=900, loss=7.0)
    ^^^^^^^^^^^^^^^^^^^^^
  File "/a/t.py", line 3, in f
    loss=1/s
ValueError: step 901 loss 8"""
    log = TrainerLog()
    for line in ["step 5/1000 loss 0.4", *(mark + line for line in trace.splitlines())]:
        log.feed([line])
    assert (log.step, log.figures["loss"]) == (5, 0.4)
    log.feed(["step 6/1000 loss 0.3"])
    assert (log.step, log.figures["loss"]) == (6, 0.3)


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        ("step 5/5 loss=0.400 tokens/s=12345", {"loss": 0.4, "tokens_per_s": 12345}),
        ("step 5/5 loss=0.400 tokens/s: 12345", {"loss": 0.4, "tokens_per_s": 12345}),
        ("step 5/5 loss 0.4 24,190 tokens/s", {"loss": 0.4, "tokens_per_s": 24190}),
        ("step 5 | Loss: 0.067 | Val Loss: 0.133", {"loss": 0.067}),
        ("step 5 | Val Loss: 0.133", {}),
        ("eval step 5 loss 0.133", {}),
        ("step 5 loss 0.133 (validation)", {}),
    ],
)
def test_figures_of_one_line(line: str, figures: dict[str, float]) -> None:
    log = TrainerLog()
    log.feed([line])
    assert {key: log.figures.get(key) for key in ("loss", "tokens_per_s") if key in log.figures} == figures


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("every", [1, 5])
def test_steps_that_begin_again_with_every_epoch(first: int, every: int) -> None:
    log, seen = TrainerLog(), set()
    for epoch in range(3):
        for step in range(every, 6, every):
            log.feed([f"Epoch [{epoch + first}/3], Step [{step}/5], Loss: 0.5"])
            seen.add((epoch > 0, log.max_steps))
            assert log.step == epoch * 5 + step
    assert seen == {(False, None), (True, 15)}
    assert [each["step"] for each in log.steps] == list(range(every, 16, every))


def test_steps_of_the_run_beside_an_epoch() -> None:
    log = TrainerLog()
    for epoch, step in ((1, 3), (1, 5), (2, 6), (2, 10)):
        log.feed([f"epoch {epoch}/2 step {step}/10 loss 0.5"])
    assert (log.step, log.max_steps, len(log.steps)) == (10, 10, 4)
