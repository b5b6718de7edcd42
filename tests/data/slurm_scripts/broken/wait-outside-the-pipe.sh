#!/bin/bash
#SBATCH --job-name=piped
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=10:00:00
#SBATCH --output=piped-%j.log

free -g | head -n 2
df -h /tmp | tail -n 1

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((15000 + SLURM_JOB_ID % 15000))

scontrol show hostnames "$SLURM_JOB_NODELIST" | while read -r host; do
    srun -N1 -n1 -w "$host" torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d \
        --rdzv_id=$SLURM_JOB_ID --rdzv_endpoint=$first:$port train_piped.py &
done
wait
