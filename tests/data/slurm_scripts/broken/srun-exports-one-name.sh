#!/bin/bash
#SBATCH -J bigbird
#SBATCH -N 2
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH -t 6:00:00
#SBATCH -o bird-%j.log

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

export PATH=/opt/envs/speech/bin:$PATH
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000)) WORLD_SIZE=4

srun --export=NCCL_DEBUG=INFO /bin/bash -c \
    'RANK=$SLURM_PROCID /opt/envs/speech/bin/python train_bird.py'
