# Two commands set up a fresh machine (Python 3.10 or newer, a C++ compiler, make):
#   make train    installs everything into .venv and trains the default model
#   make test     installs everything and runs the tests
# Both are safe to repeat. TORCH names the torch to install; an exact pin keeps pip from choosing a
# CUDA build of several gigabytes on a machine without a GPU.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
ARGS ?=

bin := $(VENV)/bin
native := $(shell find native -type f)
cuda_all := 75;80;86;89;90a;100;120

.PHONY: train test lint format cuda cuda-all gpu clean
.DELETE_ON_ERROR:

train: $(VENV)/.train
	$(bin)/python train.py $(ARGS)

test: $(VENV)/.dev
	$(bin)/python -m pytest $(ARGS)

lint: $(VENV)/.dev
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy
	$(bin)/lint-imports
	$(bin)/clang-format --dry-run --Werror $(filter %.h %.cpp %.inl %.cu %.cuh,$(native))
	$(bin)/codespell gnnsparse native models configs docs tests benchmarks scripts *.md *.py

format: $(VENV)/.dev
	$(bin)/ruff check --fix .
	$(bin)/ruff format .
	$(bin)/clang-format -i $(filter %.h %.cpp %.inl %.cu %.cuh,$(native))

# The CUDA kernels compile, and the module with them loads where there is no GPU (-S: the editable
# installation would come before it).
cuda: $(VENV)/.torch
	GNNSPARSE_CUDA=on GNNSPARSE_CUDA_ARCHITECTURES=90a \
	  $(bin)/pip install --quiet --no-deps --upgrade --target build/cuda .
	cd build/cuda/gnnsparse && $(abspath $(bin))/python -S -c \
	  "import _native; assert _native.has_cuda; print('CUDA kernels for', _native.cuda_architectures)"

cuda-all: $(VENV)/.torch
	GNNSPARSE_CUDA=on GNNSPARSE_CUDA_ARCHITECTURES="$(cuda_all)" \
	  $(bin)/pip wheel --quiet --no-deps --wheel-dir build/cuda-all .

gpu:
	scripts/gpu_check.sh

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(bin)/pip install --quiet "$(TORCH)"
	touch $@

$(VENV)/.train: $(VENV)/.torch pyproject.toml $(native)
	$(bin)/pip install --quiet --editable ".[train]"
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml $(native)
	$(bin)/pip install --quiet --editable ".[train,dev]"
	touch $(VENV)/.train $@

clean:
	rm -rf build $(VENV) outputs .pytest_cache .hypothesis .mypy_cache .ruff_cache
