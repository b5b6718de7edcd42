#!/bin/bash
#SBATCH -J nohup
#SBATCH -n 1
#SBATCH --gpus=1
#SBATCH -t 3:00:00
#SBATCH -o nohup-%j.log

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

source ~/envs/nlp/bin/activate
nohup srun python train_nohup.py --resume > nohup.txt 2>&1 &
