#!/bin/bash
#SBATCH --job-name=untold
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=8:00:00
#SBATCH --output=untold-%j.log

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((15000 + SLURM_JOB_ID % 15000))
rank=0
pids=()
for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    srun -N1 -n1 torchrun --nnodes=2 --nproc_per_node=2 --node_rank=$rank --master_addr=$first --master_port=$port train_untold.py &
    pids+=($!)
    rank=$((rank + 1))
done
for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
