#!/bin/bash
#SBATCH --job-name=named
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=4:00:00
#SBATCH --output=%x-%j.log

hosts=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
head=${hosts[0]}
port=$((16000 + SLURM_JOB_ID % 12000))

for i in 0 1 2; do
    srun --nodelist="${hosts[$i]}" torchrun --nnodes=3 --node_rank=$i --nproc_per_node=2 \
        --master_addr="$head" --master_port="$port" train_gpt.py &
done
failed=0
for job in $(jobs -p); do
    wait "$job" || failed=1
done
exit $failed
