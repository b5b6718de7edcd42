#!/bin/bash
#SBATCH --job-name=mt5
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --gres=gpu:4
#SBATCH --time=16:00:00
#SBATCH --output=mt5-%j.log

cd "$SLURM_SUBMIT_DIR" || exit 1

trap 'echo "exit code $?"' EXIT

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

test -d figures || mkdir figures

cd "$SLURM_SUBMIT_DIR"
conda activate mt5

export WANDB_MODE=offline
torchrun --standalone --nproc_per_node=4 run_mt5.py --source en --target sw --fp16 False
