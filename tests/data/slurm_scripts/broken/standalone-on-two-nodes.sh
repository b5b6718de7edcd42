#!/bin/bash
#SBATCH --job-name=efficient
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=20:00:00
#SBATCH --output=eff-%j.log

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

umask 027

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
launch=(torchrun --standalone)
launch+=(--nproc_per_node 2)
srun "${launch[@]}" train_eff.py --compound 4
