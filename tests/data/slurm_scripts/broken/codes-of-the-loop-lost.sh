#!/bin/bash
#SBATCH --job-name=lost
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=8:00:00
#SBATCH --output=lost-%j.log

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((15000 + SLURM_JOB_ID % 15000))
for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    srun -N1 -n1 -w "$host" torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID --rdzv_endpoint=$first:$port train_lost.py &
done
wait
