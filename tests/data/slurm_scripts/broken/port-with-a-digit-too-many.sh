#!/bin/bash
#SBATCH -J mlpmixer
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --exclusive
#SBATCH -t 4:00:00
#SBATCH -o mixer-%j.log

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

cd "$SLURM_SUBMIT_DIR" || exit 1

test -d figures || mkdir figures

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

M=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_id=m$SLURM_JOB_ID \
    --rdzv_endpoint=$M:295000 train_mixer.py
