#!/bin/bash
#SBATCH --job-name=ds-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=1-00:00:00
#SBATCH --requeue
#SBATCH --output=ds-%j.out

for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    echo "$host slots=4" >> hostfile
done

deepspeed --hostfile hostfile --master_port $((21000 + SLURM_JOB_ID % 9000)) \
    train_opt.py --deepspeed --deepspeed_config zero3.json
