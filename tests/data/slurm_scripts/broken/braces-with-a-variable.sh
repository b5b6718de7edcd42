#!/bin/bash
#SBATCH --job-name=two-nodes
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=10:00:00
#SBATCH --output=two-%j.log

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
last=$((SLURM_NNODES - 1))
port=$((15000 + SLURM_JOB_ID % 15000))
for i in {0..$last}; do
    srun -N1 -n1 -w "${nodes[$i]}" torchrun --nnodes=2 --node_rank="$i" --nproc_per_node=2 \
        --master_addr="${nodes[0]}" --master_port="$port" train_two.py &
done
wait
