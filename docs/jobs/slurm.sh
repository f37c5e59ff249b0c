#!/bin/bash
#SBATCH --job-name=vitlab
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
# One task a node: torchrun starts a rank for each GPU. SIGTERM, two minutes before the time is up, saves a checkpoint; the job is
# queued again, and the same command resumes. A node that dies leaves the job to the others (--nnodes 1:4).
set -euo pipefail
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 OMP_NUM_THREADS=8
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit=0 torchrun --nnodes "1:$SLURM_NNODES" --nproc-per-node 8 --max-restarts 10 \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:29500" --shutdown-timeout 100 \
    -m vitlab train "$RUN" --out "$OUT" --strategy fsdp --save-every 500
