#!/bin/bash
#SBATCH -J image
#SBATCH -N 1
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH -t 3:00:00
#SBATCH -o image-%j.log

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

export MASTER_ADDR=$(hostname) MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
IMG=$HOME/images/lab.sif
run="singularity exec --bind $HOME/data $IMG"
srun $run bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS python train_image.py'
