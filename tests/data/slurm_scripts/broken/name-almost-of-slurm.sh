#!/bin/bash
#SBATCH --job-name=vit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=6:00:00
#SBATCH --output=vit_%j.out

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((17000 + SLURM_JOB_ID % 9000))

srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODE_ID --nproc_per_node=4 \
    --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT train_vit.py'
srun_code=$?
exit $srun_code
