#!/bin/bash
#SBATCH --job-name=sdxl
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --time=9:00:00
#SBATCH --output=sdxl-%j.log

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

source ~/envs/diffusers/bin/activate
export HF_HUB_OFFLINE=1
IP=$(hostname --ip-address)

accelerate launch \
    --num_machines 2 --machine_rank 0 \
    --main_process_ip $IP --main_process_port $((12000 + SLURM_JOB_ID % 3000)) \
    --num_processes 4 --mixed_precision fp16 \
    train_sdxl.py --resolution 1024
