# Two commands set up a fresh machine (Python 3.10 or newer, a C++ compiler, make):
#   make train    installs everything into .venv and trains the default model
#   make test     installs everything and runs the tests
# Both are safe to repeat. TORCH names the torch to install; an exact pin keeps pip from choosing a
# CUDA build of several gigabytes on a machine without a GPU.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
ARGS ?=
# Processes that run tests; each takes one core.
JOBS ?= 2
WHEEL_CUDA ?= on
# A wheel is for one Python (notes/decisions.md): make wheel makes one for each of these, names or paths. Unless they are
# named: all that are installed here with what compiles extensions.
PYTHONS ?= $(shell for minor in 10 11 12 13 14; do python3.$$minor -c "import os, sys, sysconfig; \
    os.stat(sysconfig.get_path('include') + '/Python.h'); print(sys.executable)" 2>/dev/null; done; true)
# The compiler of make aarch64.
CROSS_CXX ?= aarch64-linux-gnu-g++
# For how long make fuzz runs.
SECONDS ?= 60
# Published matrices, for make reproduce.
DATA ?= ../shared/data
# For the tests of gnnsparse.interop.dgl. Its dependencies would replace torch; the extra "dgl" has those it imports.
DGL ?= dgl==2.1.0; python_version < "3.13" and sys_platform == "linux" and platform_machine == "x86_64"

bin := $(VENV)/bin
native := $(shell find native -type f)
cuda_all := 75;80;86;89;90a;100;120
comma := ,
dist = build/dist$(if $(filter off,$(WHEEL_CUDA)),-cpu)
pytest := $(bin)/python -m pytest --numprocesses $(JOBS) --dist worksteal

.PHONY: train test test-quick test-isa test-isa-portable test-isa-avx2 test-isa-avx512 fuzz tsan asan lint format cuda aarch64 wheel package docs notebooks results reproduce gpu clean
.DELETE_ON_ERROR:

train: $(VENV)/.train
	$(bin)/python train.py $(ARGS)

test: $(VENV)/.dev
	$(pytest) $(ARGS)

# For daily work: notes/testing.md says what it leaves out.
test-quick: $(VENV)/.dev
	$(pytest) -m "not slow and not gpu" --cases 1 $(ARGS)

# The numerical tests, and a sample of the others, on each instruction set below the largest that this machine has.
test-isa: $(VENV)/.dev
	for isa in $$($(bin)/python -c "from gnnsparse import _native as native; \
	    print(*[isa for isa in ('portable', 'avx2', 'avx512') if native.set_cpu_isa(isa)][:-1])"); do \
	  $(MAKE) --no-print-directory test-isa-$$isa || exit 1; \
	done

# On one of them, to which torch and MKL are held, too.
test-isa-portable test-isa-avx2 test-isa-avx512: test-isa-%: $(VENV)/.dev
	GNNSPARSE_ISA=$* ATEN_CPU_CAPABILITY=$(if $(filter portable,$*),default,$*) \
	  MKL_ENABLE_INSTRUCTIONS=$(if $(filter portable,$*),SSE4_2,$(if $(filter avx2,$*),AVX2,AVX512)) \
	  $(pytest) -m "not slow and not gpu" --sample 20 $(ARGS)

# Tests on the native CPU code built for ThreadSanitizer, or for AddressSanitizer and UBSan (notes/testing.md).
tsan asan: $(VENV)/.dev
	PYTHON=$(abspath $(bin))/python PATH="$(abspath $(bin)):$$PATH" JOBS=$(JOBS) \
	  scripts/sanitize.sh $(if $(filter tsan,$@),thread,address) $(ARGS)

# Random calls and files for this many seconds: notes/fuzzing.md.
fuzz: $(VENV)/.dev
	$(bin)/python -m tests.fuzz --seconds $(SECONDS) --jobs $(JOBS) $(ARGS)

lint: $(VENV)/.dev
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy
	$(bin)/lint-imports
	$(bin)/clang-format --dry-run --Werror $(filter %.h %.cpp %.inl %.cu %.cuh,$(native))
	$(bin)/codespell gnnsparse gnnsparse_cli launch native models papers configs docs notes examples tests benchmarks scripts *.md *.py

format: $(VENV)/.dev
	$(bin)/ruff check --fix .
	$(bin)/ruff format .
	$(bin)/clang-format -i $(filter %.h %.cpp %.inl %.cu %.cuh,$(native))

# The CUDA kernels compile, and the module with them loads where there is no GPU (-S: the editable
# installation would come before it).
cuda: $(VENV)/.dev
	GNNSPARSE_CUDA=on GNNSPARSE_CUDA_ARCHITECTURES=90a \
	  $(bin)/pip install --quiet --no-deps --no-build-isolation --upgrade --target build/cuda .
	cd build/cuda/gnnsparse && $(abspath $(bin))/python -S -c \
	  "import _native; assert _native.has_cuda; print('CUDA kernels for', _native.cuda_architectures)"
	$(bin)/python scripts/check_wheel.py build/cuda/gnnsparse/_native*.so --architectures 90a

# The module compiles for the other processor, by a compiler that runs on this one. Python's headers are the same on both.
aarch64: $(VENV)/.dev
	PATH="$(abspath $(bin)):$$PATH" cmake -S native -B build/aarch64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=$(CROSS_CXX) -DCMAKE_CXX_FLAGS=-Werror -DCMAKE_MODULE_LINKER_FLAGS=-s -DGNNSPARSE_CUDA=off \
	  -Dpybind11_DIR="$$($(bin)/python -m pybind11 --cmakedir)" -DPython_EXECUTABLE="$(abspath $(bin))/python" \
	  -DPython_INCLUDE_DIR="$$($(bin)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')"
	PATH="$(abspath $(bin)):$$PATH" cmake --build build/aarch64 --parallel $(JOBS)
	$(bin)/python scripts/check_wheel.py build/aarch64/_native*.so

# What is published, in build/dist: an sdist, and manylinux wheels that are built from it, for the processor of this
# machine (x86_64 or aarch64), with CUDA kernels for all architectures (a quarter of an hour on two cores; wheels after
# the first take a minute, because the kernels know nothing of Python). With WHEEL_CUDA=off, in build/dist-cpu, without.
wheel: $(VENV)/.dev
	rm -rf $(dist)
	$(bin)/python -m build --no-isolation --sdist --outdir $(dist) .
	mkdir $(dist)/work
	for python in $(PYTHONS); do \
	  command -v $$python >/dev/null || { echo "PYTHONS: there is no $$python here"; exit 1; }; \
	  GNNSPARSE_CUDA=$(WHEEL_CUDA) GNNSPARSE_CUDA_ARCHITECTURES="$(cuda_all)" \
	    $(bin)/pip --python "$$(command -v $$python)" wheel --quiet --no-deps --wheel-dir $(dist)/work/linux \
	    --config-settings=build-dir="$(abspath $(dist))/work/{wheel_tag}" \
	    --config-settings=cmake.define.GNNSPARSE_BUNDLE_OPENMP=ON \
	    --config-settings=cmake.define.GNNSPARSE_CUDA_LIBRARY="$$(find $(abspath $(dist))/work -name libgnnsparse_cuda.a | head -1)" \
	    $(dist)/*.tar.gz || exit 1; \
	done
	PATH="$(abspath $(bin)):$$PATH" $(bin)/auditwheel repair --wheel-dir $(dist) $(dist)/work/linux/*.whl
	rm -r $(dist)/work
	$(bin)/twine check --strict $(dist)/*
	$(bin)/python scripts/check_wheel.py $(dist)/*.whl --architectures "$(if $(filter on,$(WHEEL_CUDA)),$(cuda_all))"

# The package without kernels in fresh environments, beside the newest and the oldest torch.
package:
	$(MAKE) --no-print-directory wheel WHEEL_CUDA=off PYTHONS=$(bin)/python
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" scripts/check_package.sh build/dist-cpu

# The documentation site, in build/site; index.html is its first page.
docs: $(VENV)/.dev
	$(bin)/python scripts/build_docs.py $(if $(REPOSITORY),--repository $(REPOSITORY))

# The notebooks in examples/, from the tutorials; a test compares them.
notebooks:
	$(PYTHON) scripts/make_notebooks.py

# The tables of the README and of docs/ from the files in benchmarks/results, which tests compare with them, and a
# page of all results in build/report.html.
results: $(VENV)/.dev
	$(bin)/python scripts/readme_tables.py
	$(bin)/gnnsparse report --out build/report.html

# What the five papers count, beside ours, from the matrices in $(DATA); `make results` then makes the tables of
# notes/papers.md.
reproduce: $(VENV)/.dev
	for paper in flashsparse sspmm tiled-csr cutespmm rsh-spmm; do \
	  $(bin)/python -m papers $$paper --device cpu --data $(DATA) \
	    --json benchmarks/results/reproduce_$$(echo $$paper | tr - _)_cpu.json || exit 1; \
	done

gpu:
	scripts/gpu_check.sh

# What builds the native module, as in pyproject.toml. In an isolated environment, which has another path
# each time, everything would be compiled anew whenever one file changes.
$(VENV)/.tools:
	$(PYTHON) -m venv $(VENV)
	$(bin)/pip install --quiet cmake ninja "pybind11>=2.13" "scikit-build-core>=1.1"
	touch $@

$(VENV)/.torch: $(VENV)/.tools
	$(bin)/pip install --quiet "$(TORCH)"
	touch $@

# Compiles into build/, where the installation below finds it, while torch is downloaded.
$(VENV)/.native: $(VENV)/.tools pyproject.toml $(native)
	$(bin)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	touch $@

$(VENV)/.train $(VENV)/.dev: pyproject.toml $(native)
	$(MAKE) --no-print-directory --jobs=2 $(VENV)/.torch $(VENV)/.native
	$(bin)/pip install --quiet --no-build-isolation --editable \
	  ".[train$(if $(filter %.dev,$@),$(comma)dev)]"
	$(if $(filter %.dev,$@),$(bin)/pip install --quiet --no-deps '$(DGL)')
	touch $(if $(filter %.dev,$@),$(VENV)/.train) $@

clean:
	rm -rf build $(VENV) outputs .cache .pytest_cache .hypothesis .mypy_cache .ruff_cache
