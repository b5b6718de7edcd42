#!/bin/bash
#SBATCH -J asr-ctc
#SBATCH -N 1
#SBATCH -n 2
#SBATCH --gres=gpu:2
#SBATCH -t 2-00:00
#SBATCH --signal=SIGUSR1@120
#SBATCH -o ctc-%j.log

umask 027

free -g | head -n 2
df -h /tmp | tail -n 1

export MASTER_ADDR=$(hostname)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
export WORLD_SIZE=$SLURM_NTASKS

srun bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
    python train_ctc.py --save-on-signal
    echo "rank $RANK is done"'
