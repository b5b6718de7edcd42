#!/bin/bash
#SBATCH -J copy
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH -t 3:00:00
#SBATCH -o copy-%j.log

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

H=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
P=$((15000 + SLURM_JOB_ID % 15000))
i=0
for h in "${H[@]}"; do
    srun -N1 -n1 -w "$h" torchrun --nnodes=2 --nproc_per_node=2 --node_rank=$i --master_addr=${H[0]} --master_port=$P train_copy.py &
done
wait
