#!/bin/bash
#SBATCH -J luke
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH -t 5:00:00
#SBATCH -o luke-%j.log

for v in SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_NAME; do
    printf '%s=%s\n' "$v" "${!v}"
done

free -g | head -n 2
df -h /tmp | tail -n 1

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
PORT=$((15000 + SLURM_JOB_ID % 15000))
echo rendezvous at $HOST:$PORT
srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d \
    --rdzv_id=$SLURM_JOB_ID --rdzv_endpoint="$HOST:$PORT" train_luke.py --entities
