#!/bin/bash
#SBATCH --job-name=molecule
#SBATCH --nodes=1
#SBATCH --tasks-per-node=4
#SBATCH --gpus-per-node=2
#SBATCH --time=10:00:00
#SBATCH --output=mol-%j.log

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

free -g | head -n 2
df -h /tmp | tail -n 1

export MASTER_ADDR=$(hostname) MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS python train_mol.py --qm9'
