"""`python -m dsrun.train`: one worker of a training run, started by torch.distributed.run or srun."""

import sys

from dsrun.system.process.process_end import end
from dsrun.train.worker import main

if __name__ == "__main__":
    end(main(sys.argv[1:]))
