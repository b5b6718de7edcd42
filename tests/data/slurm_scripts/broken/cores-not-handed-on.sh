#!/bin/bash
#SBATCH --job-name=loaders
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --time=3:00:00
#SBATCH --output=loaders-%j.log

test -d figures || mkdir figures

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

umask 027

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

export MASTER_ADDR=$(hostname) MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=2 python train_loaders.py --workers 8'
