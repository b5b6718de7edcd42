"""`python -m dsrun.train`: one worker of a training run, started by torch.distributed.run or srun."""

from __future__ import annotations

import os
import sys

from dsrun.train.worker import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Threads of NCCL, wandb and data loaders can keep a finished interpreter alive for minutes.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
