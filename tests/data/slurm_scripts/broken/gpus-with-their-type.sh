#!/bin/bash
#SBATCH -J kws
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=a100:2
#SBATCH -t 6:00:00
#SBATCH -o kws-%j.log

cd "$SLURM_SUBMIT_DIR" || exit 1

free -g | head -n 2
df -h /tmp | tail -n 1

M=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ARGS=(
    --nnodes "$SLURM_NNODES"
    --nproc_per_node "$SLURM_GPUS_PER_NODE"
    --rdzv_backend c10d --rdzv_id "$SLURM_JOB_ID"
    --rdzv_endpoint "$M:$((15000 + SLURM_JOB_ID % 15000))"
)
srun torchrun "${ARGS[@]}" train_kws.py
