#!/bin/bash
#SBATCH --job-name=flaky-io
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=20:00:00
#SBATCH --output=flaky-%j.log

log() { echo "[$(date +%H:%M:%S)] $*"; }
log "nodes: $SLURM_JOB_NODELIST"

source ~/envs/llm/bin/activate
addr=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

for attempt in 1 2 3; do
    # A port for each attempt: the last one may still be closing.
    port=$((16000 + (SLURM_JOB_ID + attempt) % 16000))
    if srun --kill-on-bad-exit torchrun --nnodes=2 --nproc_per_node=2 --max_restarts=0 \
        --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID.$attempt --rdzv_endpoint=$addr:$port \
        train_web.py --resume latest; then
        exit 0
    fi
    echo "attempt $attempt failed" >&2
    sleep 30
done
exit 1
