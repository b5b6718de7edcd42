#!/bin/bash
#SBATCH --job-name=swin
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=17:00:00
#SBATCH --output=swin-%j.log

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

for v in SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_NAME; do
    printf '%s=%s\n' "$v" "${!v}"
done

addr=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID \
    --rdzv_endpoint=$addr:$((15000 + SLURM_JOB_ID % 15000)) train_swin.py --window 7
