#!/bin/bash
#SBATCH --job-name=seg3d
#SBATCH --ntasks-per-node=2
#SBATCH --nodes=1
#SBATCH --gres=gpu:2
#SBATCH --time=08:00:00
#SBATCH --output=seg3d-%j.out

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

module load singularity
export MASTER_ADDR=localhost
export MASTER_PORT=$((14000 + SLURM_JOB_ID % 9000))
export WORLD_SIZE=$SLURM_NTASKS

srun singularity exec --nv seg.sif bash -c \
    'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train_seg.py --fold 0'
