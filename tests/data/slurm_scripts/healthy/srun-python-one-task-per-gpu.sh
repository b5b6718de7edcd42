#!/bin/bash
#SBATCH --job-name=resnet
#SBATCH --account=vision
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem=200G
#SBATCH --time=06:00:00
#SBATCH --mail-type=FAIL,TIME_LIMIT

module purge
module load cuda/12.1 python/3.11
source $HOME/venvs/vision/bin/activate

export MASTER_PORT=$(( 12000 + SLURM_JOB_ID % 40000 ))
export WORLD_SIZE=$SLURM_NTASKS
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=$(echo "$nodes" | head -n 1)

echo "WORLD_SIZE=$WORLD_SIZE MASTER_ADDR=$MASTER_ADDR"

srun --cpus-per-task=8 bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
exec python train_imagenet.py --arch resnet50 --batch-size 256 --workers $SLURM_CPUS_PER_TASK'
