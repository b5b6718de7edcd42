#!/bin/bash
#SBATCH --job-name=retrieval
#SBATCH --ntasks=1
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --time=15:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --output=retrieval-%j.log

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

finish() {
    scancel --signal=USR1 "$SLURM_JOB_ID"
    wait "$step"
    echo "saved"
    exit 0
}
trap finish USR2

srun python train_retrieval.py --index faiss.bin &
step=$!
wait "$step"
