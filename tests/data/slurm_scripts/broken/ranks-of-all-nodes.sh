#!/bin/bash
#SBATCH -J opus
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus=4
#SBATCH --gpus-per-node=2
#SBATCH -t 8:00:00
#SBATCH -o opus-%j.log

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

cd "$SLURM_SUBMIT_DIR" || exit 1

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=$SLURM_GPUS \
    --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID \
    --rdzv_endpoint=$head:$((15000 + SLURM_JOB_ID % 15000)) train_opus.py
