#!/bin/bash
#SBATCH --job-name=qlora
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=5:00:00
#SBATCH --output=qlora-%j.log

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

ip=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun bash -c "accelerate launch --num_machines 2 --num_processes 2 --machine_rank \$SLURM_PROCID \
    --main_process_ip $ip --main_process_port $((15000 + SLURM_JOB_ID % 15000)) \
    train_qlora.py --bits 4"
