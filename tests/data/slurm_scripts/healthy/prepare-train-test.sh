#!/bin/bash
#SBATCH --job-name=pipeline
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-gpu=12
#SBATCH --time=1-06:30:00
#SBATCH --output=pipeline-%j.log

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

set -euo pipefail
work=work-$SLURM_JOB_ID
mkdir -p "$work"

if [[ ! -f "$work/tokens.bin" ]]; then
    python prepare_tokens.py --input corpus.txt --output "$work/tokens.bin"
fi

torchrun --standalone --nproc_per_node=2 train_lm.py --tokens "$work/tokens.bin" --save "$work/model"

torchrun --standalone --nproc_per_node=2 evaluate_lm.py --model "$work/model" --split test |
    tee "$work/scores.txt"
