#!/bin/bash
#SBATCH --job-name=nemo-8b
#SBATCH --partition=batch
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --output=%x_%j.out

set -u
IMAGE="nvcr.io#nvidia/nemo:24.07"
MOUNTS="$PWD:/workspace,$HOME/data:/data"

# The program takes its rank from SLURM (torch's environment is made by NeMo's own cluster plugin).
read -r -d '' COMMAND <<'EOF' || true
cd /workspace
python -u /opt/NeMo/examples/megatron_gpt_pretraining.py \
    --config-name=llama8b trainer.num_nodes=$SLURM_JOB_NUM_NODES trainer.devices=8
EOF

srun --container-image="$IMAGE" --container-mounts="$MOUNTS" --no-container-mount-home \
    bash -c "$COMMAND"
