#!/bin/bash
#SBATCH -J neox
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH -t 2-00:00:00
#SBATCH -o neox-%j.log

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

umask 027

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

trap 'echo "exit code $?"' EXIT

. ~/envs/ds/bin/activate
scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/$/ slots=2/' >hosts-$SLURM_JOB_ID

deepspeed --num_gpus 2 \
    --master_port $((15000 + SLURM_JOB_ID % 15000)) train_neox.py --deepspeed_config z1.json
