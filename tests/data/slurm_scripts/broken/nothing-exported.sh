#!/bin/bash
#SBATCH --job-name=sealed
#SBATCH --export=NONE
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --time=04:00:00
#SBATCH --output=sealed-%j.log

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

test -d figures || mkdir figures

source /opt/envs/speech/bin/activate
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((13000 + SLURM_JOB_ID % 7000))
export WORLD_SIZE=$SLURM_NTASKS
srun bash -c 'RANK=$SLURM_PROCID /opt/envs/speech/bin/python train_sealed.py'
