#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU: build, GPU tests, compute-sanitizer, benchmarks.
#
#   scripts/gpu_check.sh [build] [test] [sanitize] [bench] [fit] [choices] [papers] [scale]
#
# Without an argument: the first four. `fit` measures this GPU and writes a record of it, and `choices` compares what
# the plan chooses by the record in use with every kernel by itself (docs/gpu-records.md). `papers`
# measures the papers' figures of speed, some two minutes with the matrices of $GNNSPARSE_TEST_DATA. `scale` needs
# two GPUs or more: the tests of NCCL, steps on 1, 2, 4, ... of them, and a GCN that does not fit one GPU of 80 GB.
#
# Uses the python3 on the PATH with the torch it has; needs nvcc, cmake and the packages of
# `pip install .[train,dev]`. Results go to $OUT (default: benchmarks/results); where the
# sources are a copy without git, $GNNSPARSE_COMMIT names their commit in them.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${OUT:-benchmarks/results}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(build test sanitize bench)

build() {
  local generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  cmake -S native -B build/gpu "${generator[@]}" \
    -DGNNSPARSE_CUDA=on -DGNNSPARSE_LINEINFO=on \
    -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" \
    -DPython_EXECUTABLE="$(command -v "$python")"
  cmake --build build/gpu --parallel
  # Beside the sources: the package is used from this checkout.
  cmake --install build/gpu --prefix "$PWD"
}

test_() {
  "$python" -m pytest -m gpu -q -p no:cacheprovider --numprocesses "${JOBS:-4}"
}

sanitize() {
  # Without torch's caching allocator an access just past an array is not inside another one. Our
  # kernels alone: with torch's sorts and fills it takes minutes.
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  for tool in memcheck racecheck synccheck; do
    echo "== compute-sanitizer --tool $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-regex kns=gnnsparse \
      "$python" tests/gpu/every_kernel.py
  done
  unset PYTORCH_NO_CUDA_MEMORY_CACHING
}

bench() {
  mkdir -p "$out"
  local graphs=(reddit_like products_like amazon_like arxiv_like dd_like)
  local kernels=("$python" -m gnnsparse.cli.main bench kernels --device cuda --matrix "${graphs[@]}")
  "${kernels[@]}" --timing graph --precision fp16 bf16 tf32 fp32 --out "$out/spmm.json"
  "${kernels[@]}" --timing graph --precision fp16 int8 fp8 --out "$out/spmm_8bit.json"
  "${kernels[@]}" --timing graph --precision fp16 tf32 fp32 --width 128 --values none gcn random \
    --kernels auto --peers cusparse-best --out "$out/spmm_values.json"
  "${kernels[@]}" --timing graph --repeats 6 --precision fp16 tf32 fp32 --values gcn --kernels auto --peers none \
    --width 1 7 16 32 41 47 64 100 128 130 192 256 300 320 500 512 600 602 608 640 --out "$out/widths.json"
  local widths=(1 2 3 4 7 8 16 32 41 47 64 100 128 130 256 300 500 512 600 602 608)
  local best=("$python" -m gnnsparse.cli.main bench kernels --device cuda --timing graph --values gcn random
    --kernels auto --peers cusparse-best)
  "${best[@]}" --repeats 4 --precision fp16 tf32 fp32 --width "${widths[@]}" \
    --matrix dd_like arxiv_like amazon_like --out "$out/widths_cusparse.json"
  "${best[@]}" --repeats 3 --precision fp16 fp32 --width 1 2 7 16 --matrix products_like reddit_like \
    --out "$out/widths_cusparse_large.json"
  "$python" -m benchmarks.few_columns --out "$out/few_columns.json"
  "${kernels[@]}" --timing graph --precision fp16 --width 128 --values random \
    --out "$out/spmm_weighted.json"
  "$python" -m gnnsparse.cli.main bench kernels --device cuda --matrix reddit_like:shuffled \
    --reorder community --precision fp16 tf32 --width 128 --out "$out/spmm_shuffled.json"
  "${kernels[@]}" --op sddmm --precision fp16 tf32 fp32 --width 32 128 --out "$out/sddmm.json"
  # Published graphs are no part of the package: $GNNSPARSE_TEST_DATA names their folder.
  if [ -n "${GNNSPARSE_TEST_DATA:-}" ]; then
    "$python" -m gnnsparse.cli.main bench kernels --device cuda --matrix \
      "$GNNSPARSE_TEST_DATA"/{graphs,suitesparse,tu} --peers cusparse --timing graph \
      --precision fp16 --width 32 64 128 256 512 --repeats 8 --out "$out/spmm_real.json"
  fi
  "$python" -m benchmarks.host_path --out "$out/host_path.json"
  "$python" -m benchmarks.train_step --out "$out/train_step.json"
  local graph
  for graph in arxiv_like reddit_like; do
    "$python" -m benchmarks.train_step --model agnn --graph "$graph" --out "$out/agnn_step_$graph.json"
  done
  "$python" -m benchmarks.attention --out "$out/attention.json"
  "$python" -m benchmarks.attention --precision fp16 int8 fp8 --out "$out/attention_8bit.json"
  "$python" -m benchmarks.attention_peers --out "$out/attention_peers.json"
  "$python" -m benchmarks.graph_attention --out "$out/graph_attention.json"
  "$python" -m benchmarks.encoder --out "$out/encoder.json" --plot "$out/encoder.png"
}

fit() {
  mkdir -p "$out"
  # What was measured is kept: `gnnsparse bench fit --measured` fits to it again without a GPU.
  "$python" -m gnnsparse.cli.main bench fit --keep "$out/fit_measured.json" --out "$out/gpu_record.json"
}

choices() {
  mkdir -p "$out"
  "$python" -m gnnsparse.cli.main bench kernels --device cuda \
    --matrix reddit_like products_like amazon_like arxiv_like dd_like --width 41 128 256 602 \
    --precision fp16 tf32 fp32 --peers none --timing graph --out "$out/choices.json"
}

papers() {
  mkdir -p "$out"
  local paper failed=0 options=(--device cuda --data "${GNNSPARSE_TEST_DATA:-../shared/data}" --repeats 8)
  # The longest last: generated graphs stand in for Reddit, ogbn-products and Amazon. Files grow figure by figure.
  local -A figures=(
    [sspmm]="figure-9 figure-11 figure-14" [tiled-csr]="figure-10 figure-11" [cutespmm]="figure-9 table-4"
    [rsh-spmm]="figure-10 figure-16-speed" [flashsparse]="figure-11 figure-13 figure-14 figure-15"
  )
  for paper in sspmm tiled-csr cutespmm rsh-spmm flashsparse; do
    # shellcheck disable=SC2046,SC2086  # several words
    "$python" -m papers "$paper" "${options[@]}" $([ $paper != flashsparse ] || echo --generate) --figure ${figures[$paper]} \
      --json "$out/reproduce_${paper//-/_}_cuda.json" || failed=1
  done
  return $failed
}

scale() {
  mkdir -p "$out"
  local found gpus=() count=1
  found=$(nvidia-smi -L | wc -l)
  while [ "$count" -le "$found" ]; do gpus+=("$count"); count=$((2 * count)); done
  "$python" -m pytest -m gpu -q -p no:cacheprovider tests/distributed/test_nccl.py
  "$python" -m benchmarks.scaling --gpus "${gpus[@]}" --profile --out "$out/scaling.json"
  "$python" -m benchmarks.scaling --gpus 1 2 --models gcn --graphs products_like --precisions fp32 --hidden 1536 \
    --steps 4 --capture off --out "$out/scaling_memory.json"
}

for step in "${steps[@]}"; do
  case $step in
    build) build ;;
    test) test_ ;;
    sanitize) sanitize ;;
    bench) bench ;;
    fit) fit ;;
    choices) choices ;;
    papers) papers ;;
    scale) scale ;;
    *) echo "unknown step '$step': build, test, sanitize, bench, fit, choices, papers or scale" >&2; exit 2 ;;
  esac
done
