#!/usr/bin/env bash
# Installs the package into fresh environments without a GPU and runs tests/package/smoke.py there.
#
#   scripts/check_package.sh FOLDER [newest] [oldest]
#
# FOLDER has an sdist and a wheel without CUDA kernels (make wheel WHEEL_CUDA=off). Without a second argument: both.
#
# newest: the wheel, into a virtual environment of $PYTHON with $TORCH.
# oldest: the sdist, compiled in a Debian 13 with its torch 2.6, SciPy 1.15 and Python 3.13. They are the oldest torch and
#         SciPy that pyproject.toml accepts. The registry has builds of this torch with CUDA only, which take gigabytes.
#         Needs root, mmdebstrap (which is installed if it is missing) and a mirror of Debian. It is skipped, and the
#         reason printed, on machines that lack one of these.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?the folder of the sdist and the wheel}
shift
environments=("$@")
[ ${#environments[@]} -gt 0 ] || environments=(newest oldest)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

newest() {
  "${PYTHON:-python3}" -m venv "$work/newest"
  local tag
  tag=$("$work/newest/bin/python" -c 'import sys; print("cp{}{}".format(*sys.version_info))')
  "$work/newest/bin/pip" install --quiet "${TORCH:-torch}" "$folder"/*-"$tag-$tag"-*.whl
  "$work/newest/bin/pip" check
  "$work/newest/bin/python" -I tests/package/smoke.py --extras
}

has_mmdebstrap() {
  [ "$(id -u)" = 0 ] || return 1
  command -v mmdebstrap >/dev/null && return
  { timeout 120 apt-get update -qq && timeout 120 apt-get install -y -qq mmdebstrap; } >/dev/null 2>&1
}

oldest() {
  has_mmdebstrap || { echo "skipped: not root, or mmdebstrap can't be installed here"; return; }
  local packages=python3-torch,python3-scipy,python3-safetensors,python3-venv,python3-dev,g++,ca-certificates
  cat >"$work/inside.sh" <<'INSIDE'
set -eu
export HOME=/root PIP_CERT=/etc/ssl/certs/ca-certificates.crt
unset PIP_FIND_LINKS
python3 -m venv --system-site-packages /env
/env/bin/pip install --quiet /package/*.tar.gz
cd /
/env/bin/python -I /package/smoke.py --extras
INSIDE
  mkdir "$work/package"
  cp "$folder"/*.tar.gz tests/package/*.py "$work/inside.sh" "$work/package"
  # Where connections are re-encrypted on their way, this machine knows by which certificates.
  cp /etc/ssl/certs/ca-certificates.crt "$work/ca-certificates.crt"
  local status=0
  TMPDIR=$work GNNSPARSE_CUDA=off timeout 1200 mmdebstrap --quiet --variant=apt --format=null --include="$packages" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --customize-hook="copy-in $work/package /" \
    --customize-hook="copy-in $work/ca-certificates.crt /etc/ssl/certs" \
    --customize-hook="touch $work/bootstrapped" \
    --customize-hook='chroot "$1" sh /package/inside.sh' \
    trixie || status=$?
  if [ ! -e "$work/bootstrapped" ]; then
    echo "skipped: a Debian 13 can't be had here (mmdebstrap ended with $status)"
    return
  fi
  return $status
}

for environment in "${environments[@]}"; do
  echo "== the package beside the $environment torch"
  case $environment in
    newest) newest ;;
    oldest) oldest ;;
    *) echo "unknown environment '$environment': newest or oldest" >&2; exit 2 ;;
  esac
done
