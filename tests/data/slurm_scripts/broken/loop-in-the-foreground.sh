#!/bin/bash
#SBATCH -J oneafter
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH -t 3:00:00
#SBATCH -o after-%j.log

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

hosts=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
port=$((15000 + SLURM_JOB_ID % 15000))
rank=0
for host in "${hosts[@]}"; do
    srun -N 1 -n 1 -w "$host" torchrun --nnodes=2 --nproc_per_node=2 --node_rank=$rank \
        --master_addr="${hosts[0]}" --master_port=$port train_after.py
    rank=$((rank + 1))
done
wait
