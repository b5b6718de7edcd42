#!/bin/bash
#SBATCH --job-name=reid
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=6:00:00
#SBATCH --output=reid-%j.log

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

trap 'echo "exit code $?"' EXIT

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c '
export MASTER_ADDR=$(hostname -s)
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
python train_reid.py --market1501'
