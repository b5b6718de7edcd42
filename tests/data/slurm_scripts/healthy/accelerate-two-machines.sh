#!/bin/bash
#SBATCH --job-name=dpo
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=8:00:00
#SBATCH --output=dpo-%j.log

test -d figures || mkdir figures

GPUS=4
export ACCELERATE_LOG_LEVEL=info
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((21000 + SLURM_JOB_ID % 9000))

launcher="accelerate launch \
  --multi_gpu \
  --num_machines $SLURM_NNODES \
  --num_processes $((SLURM_NNODES * GPUS)) \
  --machine_rank \$SLURM_NODEID \
  --main_process_ip $head_node \
  --main_process_port $port \
  --mixed_precision bf16"
program="train_dpo.py --model_name zephyr-7b --beta 0.1 --output_dir dpo-out"

srun bash -c "$launcher $program"
