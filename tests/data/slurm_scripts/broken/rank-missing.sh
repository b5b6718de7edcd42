#!/bin/bash
#SBATCH --job-name=ssl
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --time=22:00:00
#SBATCH --output=ssl-%j.out

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

source ~/envs/vision/bin/activate
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))

echo MASTER_ADDR=$MASTER_ADDR WORLD_SIZE=$WORLD_SIZE

srun python main_dino.py --arch vit_small --data_path $HOME/data/imagenet
