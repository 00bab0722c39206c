#!/usr/bin/env bash
# Tests on the native CPU code, instrumented by a compiler's sanitizer:
#
#   scripts/sanitize.sh thread [pytest arguments]     ThreadSanitizer: loops in threads, operands shared by threads
#   scripts/sanitize.sh address [pytest arguments]    AddressSanitizer and UBSan: every quick test, and the emulator
#
# Without arguments for pytest each runs the tests that are named below. A report fails the run, and is printed at its
# end. $PYTHON is of an environment in which gnnsparse is installed with its development tools; gcc has the runtimes.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?thread or address}
shift
python=${PYTHON:-python3}
build=$PWD/build/$kind
reports=$build/reports

runtime() { ${CXX:-g++} -print-file-name="$1"; }

"$python" -m cmake --version >/dev/null 2>&1 && cmake=("$python" -m cmake) || cmake=(cmake)
"${cmake[@]}" -S native -B "$build" -DGNNSPARSE_CUDA=off -DGNNSPARSE_SANITIZE="$kind" \
  -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" \
  -DPython_EXECUTABLE="$(command -v "$python")" >/dev/null
"${cmake[@]}" --build "$build" --parallel "${JOBS:-2}"
rm -rf "$reports"
mkdir -p "$reports"
export GNNSPARSE_TEST_NATIVE=$build

case $kind in
  thread)
    preload=$(runtime libtsan.so)
    tests=(tests/runtime/test_threads.py tests/sparse/test_{shared_operands,csr}.py tests/formats/test_stored_formats.py
      tests/preprocess/test_row_orders.py
      tests/ops/test_{cpu_isa,gradients,edge_softmax,attention}.py)
    # Every loop that has work for them runs in four threads.
    export OMP_NUM_THREADS=4
    # CPython, torch and libgomp are not instrumented, and what they do to memory is not looked at. Nothing else needs
    # to be left out: the module's own loops run over std::thread in this build (native/cpu/parallel.h).
    export TSAN_OPTIONS="ignore_noninstrumented_modules=1 second_deadlock_stack=1 log_path=$reports/report"
    ;;
  address)
    # libstdc++ has to be there when the runtime looks for what throws C++ exceptions.
    preload="$(runtime libasan.so) $(runtime libstdc++.so.6)"
    tests=(-m "not slow" tests/{data,formats,native,nn,ops,plan,preprocess,runtime,sampling,sparse})
    # CPython frees little at its end, which is no leak of ours.
    export ASAN_OPTIONS="detect_leaks=0 detect_stack_use_after_return=0 log_path=$reports/report"
    export UBSAN_OPTIONS="print_stacktrace=1 log_path=$reports/report"
    export GNNSPARSE_EMULATOR_SANITIZED=1
    ;;
  *)
    echo "unknown sanitizer '$kind': thread or address" >&2
    exit 2
    ;;
esac
[ $# -eq 0 ] || tests=("$@")

status=0
LD_PRELOAD=$preload "$python" -m pytest -p tests.native_build -p no:cacheprovider -n0 "${tests[@]}" || status=$?
if compgen -G "$reports/report*" >/dev/null; then
  cat "$reports"/report*
  echo "the $kind sanitizer has found something: $reports" >&2
  exit 1
fi
exit "$status"
