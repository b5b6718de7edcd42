#!/bin/bash
#SBATCH --job-name=placed
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=4:00:00
#SBATCH --output=%x-%j.log

export HF_TOKEN=$HF_TOKEN
hosts=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
head=${hosts[0]}
port=$((16000 + SLURM_JOB_ID % 12000))

# Each node makes a folder of its own, one after the other.
for host in "${hosts[@]}"; do
    srun -N1 -n1 -w "$host" mkdir -p "/tmp/placed-$SLURM_JOB_ID"
done

: > hosts-of-placed
for host in "${hosts[@]}"; do
    echo "$host" >> hosts-of-placed
done
sort hosts-of-placed

train() {
    srun -N1 -n1 -w "${hosts[0]}" torchrun --nnodes=2 --node_rank=0 --nproc_per_node=2 \
        --master_addr="$head" --master_port="$port" train_gpt.py --scratch "/tmp/placed-$SLURM_JOB_ID" &
    first=$!
    srun -N1 -n1 -w "${hosts[1]}" torchrun --nnodes=2 --node_rank=1 --nproc_per_node=2 \
        --master_addr="$head" --master_port="$port" train_gpt.py --scratch "/tmp/placed-$SLURM_JOB_ID" &
    wait "$first" && wait $!
}

train
