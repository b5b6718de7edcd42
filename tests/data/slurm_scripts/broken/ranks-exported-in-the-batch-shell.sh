#!/bin/bash
#SBATCH --job-name=yolo
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=10:00:00
#SBATCH --output=yolo-%j.log

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

source ~/envs/vision/bin/activate

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
export WORLD_SIZE=$SLURM_NTASKS
export RANK=$SLURM_PROCID
echo "world size $WORLD_SIZE"

srun python train_yolo.py --imgsz 640 --batch 64
