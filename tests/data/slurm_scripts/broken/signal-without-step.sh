#!/bin/bash
#SBATCH --job-name=gnn
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-gpu=8
#SBATCH --time=10:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=gnn-%j.out

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

source ~/envs/pyg/bin/activate
# train_gnn.py saves on SIGTERM, which torchrun hands on.
torchrun --standalone --nproc_per_node=2 train_gnn.py --dataset ogbn-papers100M
