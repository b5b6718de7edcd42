#!/bin/bash
#SBATCH --job-name=ddp-loop
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=16
#SBATCH --time=5:00:00
#SBATCH --output=loop-%j.out

nodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )
master=${nodes[0]}
port=$(( 17000 + SLURM_JOB_ID % 13000 ))
pids=()

for (( i = 0; i < ${#nodes[@]}; i++ )); do
    echo "starting node $i on ${nodes[$i]}"
    srun --nodes=1 --ntasks=1 --cpus-per-task=16 -w ${nodes[$i]} \
        torchrun --nnodes=${#nodes[@]} --node_rank=$i --nproc_per_node=2 \
            --master_addr=$master --master_port=$port \
            train.py --epochs 90 &
    pids+=($!)
done

status=0
for pid in "${pids[@]}"; do
    wait "$pid" || status=1
done
exit $status
