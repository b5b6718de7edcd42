#!/bin/bash
#SBATCH --job-name=patient
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --time=8:00:00
#SBATCH --output=patient-%j.log

finish() {
    wait "$1"
    code=$?
    echo "ended with $code"
    exit "$code"
}

torchrun --standalone --nproc_per_node=4 train_patient.py &
last=$!
finish "$last"
