#!/bin/bash
#SBATCH --job-name=any-config
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=9:00:00
#SBATCH --output=any-%j.log
#
# sbatch any.sh --config configs/a.yaml --seed 3

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

set -euo pipefail
master=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d \
    --rdzv_endpoint="$master:$((26000 + SLURM_JOB_ID % 3000))" --rdzv_id="$SLURM_JOB_ID" \
    -m mylab.train "$@"
