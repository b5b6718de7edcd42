#!/bin/bash
#SBATCH --job-name=long-run
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=long-%j.log

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((25000 + SLURM_JOB_ID % 5000))
export WORLD_SIZE=$SLURM_NTASKS

# Ten minutes before the end: let the ranks save, then get back into the queue.
save_and_requeue() {
    echo "$(date): time is nearly up"
    scancel --signal=USR1 "$SLURM_JOB_ID"
    wait "$step"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap save_and_requeue USR1

srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python train_forever.py --resume auto' &
step=$!
wait "$step"
