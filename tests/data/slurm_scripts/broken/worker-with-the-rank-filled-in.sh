#!/bin/bash
#SBATCH --job-name=worker
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=6:00:00
#SBATCH --output=worker_%j.out

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((17000 + SLURM_JOB_ID % 9000))
worker=$SLURM_SUBMIT_DIR/worker_$SLURM_JOB_ID.sh

cat > "$worker" <<EOF
#!/bin/bash
torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 \\
    --node_rank=$SLURM_NODEID \\
    --master_addr=$head --master_port=$port train_worker.py
EOF
chmod +x "$worker"

srun "$worker"
