#!/bin/bash
#SBATCH -J sd3
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH -t 30:00:00
#SBATCH -o sd3-%j.log

free -g | head -n 2
df -h /tmp | tail -n 1

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

for v in SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_NAME; do
    printf '%s=%s\n' "$v" "${!v}"
done

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

# Whole nodes: the default port of accelerate is free there.
IP=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun bash -c "accelerate launch \
    --num_machines 2 --num_processes 16 --machine_rank \$SLURM_NODEID \
    --main_process_ip $IP --main_process_port 29500 \
    train_sd3.py --resolution 1024"
