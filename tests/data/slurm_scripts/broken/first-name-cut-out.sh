#!/bin/bash
#SBATCH --job-name=cut
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=8:00:00
#SBATCH --output=cut-%j.log

export MASTER_ADDR=${SLURM_JOB_NODELIST%%,*}
export MASTER_PORT=$((18000 + SLURM_JOB_ID % 8000))
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec python train_cut.py'
