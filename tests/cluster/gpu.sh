#!/usr/bin/env bash
# What needs a GPU, in at most ten minutes: tests, speed, and text models of 25 million parameters.
#   bash tests/cluster/gpu.sh FOLDER              on a machine with a CUDA device
#   DRY_RUN=1 bash tests/cluster/gpu.sh FOLDER    the same commands with tiny sizes on the CPU
# PYTHON names the interpreter. A part that fails or takes too long is reported and the next one begins. Text models are trained one
# after another until the time is up; the last column of FOLDER/parts.txt is the exit status of each part.
set -uo pipefail
cd "$(dirname "$0")/../.."
folder=$(realpath -m "$1")
python=${PYTHON:-.venv/bin/python}
total=585  # seconds
mkdir -p "$folder"
: > "$folder/parts.txt"

part() { # NAME SECONDS COMMAND...: run a command for at most so many seconds, and for no longer than is left
  local name=$1 limit=$2 begin=$SECONDS left=$((total - SECONDS))
  shift 2
  [ "$left" -lt 20 ] && { echo "$name: no time left" | tee -a "$folder/parts.txt"; return 1; }
  timeout --signal=INT --kill-after=10 "$((limit < left ? limit : left))" "$@" > "$folder/$name.log" 2>&1
  echo "$name: $((SECONDS - begin)) s, exit status $?" | tee -a "$folder/parts.txt"
}

if [ -n "${DRY_RUN:-}" ]; then
  export DRY_RUN
  size=(trainer=cpu model.d_model=16 model.num_heads=2 model.num_layers=1 training.max_length=32 training.batch_size=2
    training.steps=4 training.check_examples=2 'evaluation.lengths=[16,32,64]' evaluation.examples=2)
  window=32
  device=cpu
else
  # 8 layers of width 512 have 25 million parameters. A step reads 16,384 bytes.
  size=(trainer=gpu trainer.precision=bf16-mixed model.d_model=512 model.num_heads=8 model.num_layers=8 training.max_length=512
    training.batch_size=32 training.steps=600 'evaluation.lengths=[16,64,256,512,1024,2048]' evaluation.examples=48)
  window=512
  device=cuda
fi

part tests 180 "$python" -m pytest -n 0 -q -p no:cacheprovider tests/integration/test_gpu.py
# The time of a step beside x-transformers and others.
part benchmark 120 "$python" scripts/benchmark.py parts=gpu device="$device" out="$folder/benchmark"
for encoding in pe=rope pe=alibi pe=fox+pe.initial_bias=4 pe=kerple_log pe=cpb_log pe=none; do
  [ $((total - SECONDS)) -lt 150 ] && break # the rest is for what follows
  name=text-${encoding#pe=}
  read -r -a pe <<< "${encoding/+/ }"
  part "$name" 240 "$python" scripts/train.py task=text "${pe[@]}" "${size[@]}" training.learning_rate=0.001 seed=0 \
    study=gpu_text results_dir="$folder/results" logger=none || break
done
# The same RoPE model that reads only its last bytes.
for run in "$folder"/results/runs/text-*-rope-s0-*; do
  part truncated 60 "$python" scripts/evaluate.py run="$run" evaluation.window=$window
done
part compare 60 "$python" scripts/compare.py study=gpu_text results_dir="$folder/results"
cat "$folder/parts.txt"
