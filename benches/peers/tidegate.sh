#!/usr/bin/env bash
# Starts Tidegate for the side-by-side measurement, as `ours`: tidegate.sh PROGRAM [lanes|reference_bucket|...].
# From the environment: PORT, BACKENDS ("HOST:PORT HOST:PORT ..."), RUN_DIR (an empty folder). The first half of the servers are
# the short group. Metrics are on, the access log is off.
set -euo pipefail
program=$1 policy=${2:-lanes}
read -ra servers <<<"$BACKENDS"
half=$((${#servers[@]} / 2))
list() { local IFS=,; echo "[$*]"; }
bound() { [ "$policy" = reference_bucket ] && echo "up_to_tokens: $1, " || true; }
cat >"$RUN_DIR/tidegate.yaml" <<YAML
listen: 127.0.0.1:$PORT
admin: { listen: "127.0.0.1:$((PORT + 1))" }
groups:
  - { name: short, max_model_len: none, $(bound 32768)servers: $(list "${servers[@]:0:half}") }
  - { name: long, max_model_len: none, $(bound 131072)servers: $(list "${servers[@]:half}") }
policy: { kind: $policy }
YAML
exec "$program" --conf "$RUN_DIR/tidegate.yaml"
