#!/bin/bash
#SBATCH --job-name=texts
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --time=6:00:00
#SBATCH --output=texts-%j.log

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

source ~/envs/nlp/bin/activate
M=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun torchrun --nnodes=2 \
    --nproc_per_node=$SLURM_TASKS_PER_NODE \
    --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID --rdzv_endpoint=$M:$((15000 + SLURM_JOB_ID % 15000)) \
    train_texts.py
