#!/bin/bash
#SBATCH --job-name=handed-on
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=20:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=handed-%j.log

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

# torchrun hands SIGTERM on to its ranks, which save.
set -euo pipefail
addr=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID \
    --rdzv_endpoint=$addr:$((15000 + SLURM_JOB_ID % 15000)) train_on.py --save-on-sigterm
