#!/bin/bash
#SBATCH -J slowfast
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH -t 18:00:00
#SBATCH -o slow-%j.log

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

export M=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) P=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c 'torchrun --nnodes=2 --nproc_per_node=2 --node_rank=$SLURM_LOCALID \
    --master_addr=$M --master_port=$P train_slowfast.py'
