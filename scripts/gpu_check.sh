#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU: build, GPU tests, compute-sanitizer, benchmarks.
#
#   scripts/gpu_check.sh [build] [test] [sanitize] [bench] [products] [models] [fit] [choices] [papers] [scale]
#
# Without an argument: the first four. `bench` is `products` and `models`: the tables of docs/results.md. `fit` measures
# this GPU and writes a record of it, and `choices` compares what the plan chooses by the record in use with every
# kernel by itself (docs/gpu-records.md). `papers` measures the papers' figures of speed, some two minutes with the
# matrices of $GNNSPARSE_TEST_DATA. `scale` needs two GPUs or more: the tests of NCCL, steps on 1, 2, 4, ... of them,
# and a GCN that does not fit one GPU of 80 GB.
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
  local barriers=() parts=()
  for tool in memcheck racecheck synccheck; do
    echo "== compute-sanitizer --tool $tool"
    # By an internal error racecheck ends in the backward pass of networks, whose kernels are clean by themselves.
    [ "$tool" = racecheck ] && parts=(-networks) || parts=()
    # By default the other two track fewer barriers in shared memory than our blocks have.
    [ "$tool" = memcheck ] || barriers=(--num-cuda-barriers 1024)
    compute-sanitizer --tool "$tool" --error-exitcode 9 "${barriers[@]}" --kernel-regex kns=gnnsparse \
      "$python" tests/gpu/every_kernel.py "${parts[@]}"
  done
  unset PYTORCH_NO_CUDA_MEMORY_CACHING
}

bench() {
  products
  models
}

# Both make the tables of docs/results.md, in one run, so that all figures are of one machine and one commit. On a
# machine of several GPUs they run side by side. The commands of other tables are in notes/reproducibility.md.
products() {
  mkdir -p "$out"
  local kernels=("$python" -m gnnsparse.cli.main bench kernels --device cuda --timing graph --repeats 8
    --values gcn --width 128 --kernels auto --peers cusparse-best cusparse)
  "${kernels[@]}" --matrix reddit_like products_like amazon_like arxiv_like dd_like --precision fp16 fp32 \
    --out "$out/spmm.json"
  # Published graphs and other libraries are no part of the project: these name their folders.
  [ -z "${GNNSPARSE_TEST_DATA:-}" ] || "${kernels[@]}" --matrix "$GNNSPARSE_TEST_DATA"/{graphs,suitesparse,tu} \
    --precision fp16 --out "$out/spmm_real.json"
  [ -z "${GNNSPARSE_RIVALS:-}" ] ||
    "$python" -m benchmarks.peers run --folder "$GNNSPARSE_RIVALS" --repeats 7 --out "$out/peers.json"
}

models() {
  mkdir -p "$out"
  "$python" -m benchmarks.train_step --out "$out/train_step.json"
  "$python" -m benchmarks.attention_peers --out "$out/attention_peers.json"
  local encoder=("$python" -m gnnsparse.cli.main bench latency --device cuda --cache warm --model transformer
    --precision fp16 --mode captured --batch 1,2,8 --backend gnnsparse,dense --seconds 1)
  "${encoder[@]}" --out "$out/latency_encoder.json"
  "${encoder[@]}" --heads 4 --out "$out/latency_encoder4.json"
  "$python" -m benchmarks.interop_pyg --parts steps --layers GCN SAGE GIN GAT GATv2 TransformerConv \
    --out "$out/interop_pyg.json"
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
    products) products ;;
    models) models ;;
    fit) fit ;;
    choices) choices ;;
    papers) papers ;;
    scale) scale ;;
    *)
      echo "unknown step '$step': build, test, sanitize, bench, products, models, fit, choices, papers or scale" >&2
      exit 2
      ;;
  esac
done
