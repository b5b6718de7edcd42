#!/bin/bash
#SBATCH -J inner
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH -t 3:00:00
#SBATCH -o inner-%j.log

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

export M=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) P=$((15000 + SLURM_JOB_ID % 15000))
bash -c 'torchrun --nnodes=$SLURM_NNODES --node_rank=$SLURM_NODEID --nproc_per_node=2 \
    --master_addr=$M --master_port=$P train_inner.py "$@"' - "$@"
