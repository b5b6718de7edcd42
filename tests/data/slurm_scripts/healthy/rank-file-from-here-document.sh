#!/bin/bash
#SBATCH --job-name=wav2vec
#SBATCH --nodes=2 --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH --time=10:00:00
#SBATCH --output=wav2vec.%j

set -e
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | sed -n 1p)
export MASTER_PORT=$(expr 10000 + $SLURM_JOB_ID % 10000)

# Runs in each task; nothing in it is expanded here.
cat > task-$SLURM_JOB_ID.sh <<'END'
#!/bin/bash
export RANK=$SLURM_PROCID
export LOCAL_RANK=$SLURM_LOCALID
export WORLD_SIZE=$SLURM_NTASKS
exec python -u train_wav2vec.py "$@"
END

srun bash task-$SLURM_JOB_ID.sh --manifest data/train.tsv --max-tokens 1400000 --updates 400000
rm -f task-$SLURM_JOB_ID.sh
