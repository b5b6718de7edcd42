#!/bin/bash
#SBATCH --job-name="ro \"large\" #2"
#SBATCH --comment="it's for the paper"
#SBATCH --output=logs/%x-%j.out
#SBATCH --mail-user=ada@example.org
#SBATCH --mail-type=END,FAIL,REQUEUE
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=a100:4
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --exclusive
#SBATCH --time=2-00:00:00
#SBATCH --constraint=a100&ib
#SBATCH --partition=gpu,long
#SBATCH --account=nlp
#SBATCH --qos=high
#SBATCH --reservation=course
#SBATCH --nodelist=node[01-09]
#SBATCH --exclude=node[03,05]
#SBATCH --licenses=matlab:1
#SBATCH --begin=now+1hour
#SBATCH --dependency=afterok:1234
#SBATCH --chdir="/home/ada/my project"
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --export=HOME,USER,LOGNAME,SHELL,HF_TOKEN,WANDB_API_KEY
#SBATCH --switches=1@00:10:00
#SBATCH --contiguous
# Rendered by dsrun VERSION for ada: dsrun render-slurm --nodes 4
# `dsrun render-slurm --show-template` prints the template; signals, waiting and requeueing are functions of job.bash.
# shellcheck disable=SC1090,SC1091,SC2034,SC2154
set -u -o pipefail
source /opt/dsrun/share/job.bash || exit 4
need HF_TOKEN
need WANDB_API_KEY

# The environment of every process of this job. Sourced files seldom support `set -u`.
set +u
# If `module` is not exported as a function, the login shell's setup defines it.
command -v module >/dev/null || source /etc/profile
module load cuda/13.0 nccl || exit 4
source '/shared/set up.sh' || exit 4
eval "$(conda shell.bash hook)" && conda activate 'train env' || exit 4
# With `set -e` left on by a sourced file, the script would exit before it can requeue the job.
set +e -u -o pipefail
export DSRUN_GPUS=4
export NCCL_SOCKET_IFNAME='=eth0'
export GLOO_SOCKET_IFNAME=eth0
export GREETING=$'it\'s $5'
[ -v TOKENIZERS_PARALLELISM ] || export TOKENIZERS_PARALLELISM=false
[ -v PYTORCH_CUDA_ALLOC_CONF ] || export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
[ -v NCCL_NET ] || export NCCL_NET=Socket
[ -v NCCL_IB_DISABLE ] || export NCCL_IB_DISABLE=1
# With these set Accelerate silently drops DeepSpeed.
unset ACCELERATE_USE_CPU ACCELERATE_USE_DEEPSPEED ACCELERATE_MIXED_PRECISION ACCELERATE_USE_FSDP

nproc=4 cpu_only='' trains=yes supervised=yes
requeue=yes max_requeues=3 saving_time=270
start_job "$PWD"/runs/ro

# One supervisor per node restarts the workers after transient failures; it exits with 75 if a signal stopped the run.
srun --export=ALL --wait=60 "${cpus[@]}" \
    bash -c "$on_node" dsrun-node \
    python -m dsrun launch -- \
    python -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=4 --max-restarts=2 \
    --rdzv-backend=c10d --rdzv-endpoint="$endpoint" --rdzv-id="$job-$restart" \
    --module -- dsrun.train --model t5-large --dataset wmt16 --dataset-config ro-en --output runs/ro &
finish "$!"
