#!/bin/bash
#SBATCH --job-name=vae
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=8:00:00
#SBATCH --output=vae-%j.log

cd "$SLURM_SUBMIT_DIR" || exit 1

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

trap 'echo "exit code $?"' EXIT

umask 027

export HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PORT=$((15000 + SLURM_JOB_ID % 15000))
RANK_OF_NODE=0
srun torchrun --nnodes=2 --node_rank=$RANK_OF_NODE --nproc_per_node=2 \
    --master_addr=$HOST --master_port=$PORT train_vae.py --beta 4
