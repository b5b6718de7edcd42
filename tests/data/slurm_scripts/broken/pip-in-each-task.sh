#!/bin/bash
#SBATCH --job-name=pip
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --time=3:00:00
#SBATCH --output=pip-%j.log

free -g | head -n 2
df -h /tmp | tail -n 1

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c 'pip install -q einops
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
    python train_pip.py'
