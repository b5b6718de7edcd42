#!/bin/bash
#SBATCH --job-name=function
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=3:00:00
#SBATCH --output=function-%j.log

umask 027

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

export HF_HOME=$HOME/cache/huggingface
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

export M=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
train_node() {
    torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID \
        --rdzv_endpoint=$M:$((15000 + SLURM_JOB_ID % 15000)) train_function.py
}
srun train_node
