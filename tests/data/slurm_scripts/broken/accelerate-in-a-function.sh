#!/bin/bash
#SBATCH --job-name=align
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=6:00:00
#SBATCH --output=align-%j.log

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

export IP=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PORT=$((15000 + SLURM_JOB_ID % 15000))

align() {
    accelerate launch --num_machines 2 --num_processes 4 --machine_rank $SLURM_NODEID \
        --main_process_ip $IP --main_process_port $PORT train_align.py "$@"
}
align --method orpo
