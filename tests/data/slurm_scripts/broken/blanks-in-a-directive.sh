#!/bin/bash
#SBATCH --job-name=blanks
#SBATCH --nodes = 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=3:00:00
#SBATCH --output=blanks-%j.log

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

M=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=2 --rdzv_backend=c10d \
    --rdzv_id=$SLURM_JOB_ID --rdzv_endpoint=$M:$((15000 + SLURM_JOB_ID % 15000)) train_blanks.py
