#!/bin/bash
#SBATCH --job-name=nmt
#SBATCH --partition=a100
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=15:00:00
#SBATCH --output=nmt-%j.log

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

# What all our jobs share: modules, caches, network. Sets MASTER_ADDR and MASTER_PORT.
source ~/site/cluster.sh
source ~/envs/nmt/bin/activate

echo "master: $MASTER_ADDR:$MASTER_PORT"

srun torchrun \
    --nnodes=$SLURM_NNODES --nproc_per_node=2 \
    --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT \
    train_nmt.py --pair en-de --arch transformer_big
