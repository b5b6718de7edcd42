#!/bin/bash
#SBATCH --job-name=gan
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=13:00:00
#SBATCH --output=gan-%j.log

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

export MASTER_ADDR=127.0.0.1
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
export WORLD_SIZE=2
export LOCAL_RANK=$SLURM_LOCALID

srun bash -c 'RANK=$SLURM_PROCID python train_gan.py --image-size 256'
