"""A training of the tutorial that is watched, stopped and resumed, one that fails, and what is printed about them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dsrun.runs.records import read_records

CHECKOUT = Path(__file__).parents[2]
DSRUN = Path(sys.executable).with_name("dsrun")
COLUMNS = 104
TRAIN = (
    *("train", "--config", "run.yaml", "--nproc", "2"),
    *("--num_train_epochs", "10", "--eval_strategy", "epoch", "--save_strategy", "epoch"),
)
WATCHED_STEP, STOPPED_STEP = 130, 140
"""Of 240."""
LIMIT_S = 900.0
HOST = "node1"
STOPPED = 75


class TutorialJob:
    """The commands of the tutorial, in a folder of their own. Every wait has a limit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_folder = folder / "runs" / "numbers"
        shown = {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        hidden = ("NO_COLOR", "DSRUN_", "SLURM_", "RANK", "WORLD_SIZE")
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | shown

    def prepare(self) -> None:
        """The data files and run.yaml."""
        script = CHECKOUT / "docs" / "examples" / "number_words.py"
        subprocess.run([sys.executable, script], cwd=self.folder, check=True, timeout=LIMIT_S)
        self.printed("init", "--model", "demo-t5", "--train-file", "train.jsonl", "--output", "runs/numbers", "--yes")

    def watched(self) -> str:
        """What `dsrun monitor` shows of the training, which is then told to stop, and has saved when this returns."""
        with (self.folder / "train.log").open("w") as log:
            training = subprocess.Popen(
                [DSRUN, *TRAIN], cwd=self.folder, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                self._wait_for_step(training, WATCHED_STEP)
                shown = self.printed("monitor", "runs/numbers", "--once")
                self._wait_for_step(training, STOPPED_STEP)
                training.send_signal(signal.SIGTERM)
                code = training.wait(LIMIT_S)
            finally:
                training.kill()
        if code != STOPPED:
            raise RuntimeError(f"the training ended with {code}, not {STOPPED}: {self.folder}/train.log")
        # A machine's own name is nobody's business.
        own = rf"^((?:\x1b\[[\d;]*m)?){re.escape(socket.gethostname())}\b"
        return re.sub(own, rf"\1{HOST}", shown, flags=re.MULTILINE)

    def resumed(self) -> str:
        """What the same command prints until the end."""
        return self.printed(*TRAIN).replace(f" of {socket.gethostname()},", f" of {HOST},")

    def diagnosed(self) -> str:
        """What `dsrun diagnose` says of a training whose learning rate is far too high."""
        self.printed(*TRAIN, "--learning_rate", "1e8", "--output", "runs/too-fast", codes=(1,))
        return self.printed("diagnose", "runs/too-fast", codes=(3,))

    def loss_png(self) -> bytes:
        """The chart of the loss in the report."""
        self.printed("report", "runs/numbers", "--png", "plots", "--force")
        return (self.folder / "plots" / "loss.png").read_bytes()

    def printed(self, *words: str, codes: Sequence[int] = (0,)) -> str:
        """What a command prints, both streams, in colours. Raises RuntimeError where it ends with another code."""
        done = subprocess.run(
            [DSRUN, *words], cwd=self.folder, env=self._environment, text=True, timeout=LIMIT_S, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode not in codes:
            raise RuntimeError(f"dsrun {' '.join(words)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def _wait_for_step(self, training: "subprocess.Popen[bytes]", step: int) -> None:
        ledger = self.run_folder / "metrics.jsonl"
        deadline = time.monotonic() + LIMIT_S
        while not ledger.exists() or max((row.get("step", 0) for row in read_records(ledger)), default=0) < step:
            if training.poll() is not None:
                raise RuntimeError(f"the training ended before step {step}: {self.folder}/train.log")
            if time.monotonic() > deadline:
                raise RuntimeError(f"step {step} was not reached in {LIMIT_S:.0f} s: {self.folder}/train.log")
            time.sleep(0.2)
