#!/usr/bin/env bash
# Run on every host, with the same arguments, in any order:
#
#   HEAD=node1 NNODES=2:3 bash tools/launch/torchrun.sh SHARDS OUT [options of tools/train.py]
#
# HEAD: the host that holds the rendezvous, one of them. NNODES: the least and the most hosts; more
# than half as the least, so that a host that is cut off can't go on by itself. NPROC: ranks a host.
# A host that is lost is left out after TIMEOUT seconds, and one that comes (back) is taken in.
set -euo pipefail
HEAD=${HEAD:?the host that holds the rendezvous}
TIMEOUT=${TIMEOUT:-300}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# torch 2.13 gives restarted ranks the rendezvous' own store otherwise, with what the last ones left
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes "${NNODES:?the least and the most hosts, such as 2:3}" \
    --nproc-per-node "${NPROC:-gpu}" \
    --max-restarts "${MAX_RESTARTS:-100}" \
    --rdzv-backend c10d \
    --rdzv-endpoint "$HEAD:${PORT:-29400}" \
    --rdzv-id "${JOB:-shardloader}" \
    --rdzv-conf "${RDZV_CONF:-join_timeout=600,last_call_timeout=30}" \
    "$here/../train.py" "$@" --timeout "$TIMEOUT"
