# make demo and make test work on a machine that has only python3 (3.11 or newer), make and a C++ compiler.
VENV ?= .venv
PYTHON ?= python3
CUDA_VENV ?= .venv-cuda
BIN := $(VENV)/bin
# Images often set it. Each worker and each process of the tests would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO_OUTPUT ?= runs/demo
# One more than there are cores: some tests wait.
TEST_WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Each with clusters of its own; their jobs mostly wait.
SLURM_WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --budget

.PHONY: demo test test-all test-slurm test-kubernetes test-pythons test-image test-faults test-kills test-cuda-wheel test-repeat test-gpu fast-lint lint bench bench-gpu docs certify certify-tenth catalogue clean

# A driver may be too old for this torch, or have no GPU: then on the CPUs, which `dsrun train` alone would have to be told.
demo: $(VENV)/.train
	$(BIN)/dsrun train --zero 2 --model demo-t5 --output $(DEMO_OUTPUT) --resume never --force \
		$$(ls /dev/nvidia[0-9]* >/dev/null 2>&1 || nvidia-smi -L >/dev/null 2>&1 || { echo --nproc 2; exit; }; \
		$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || echo --use-cpu --nproc 2)

# What a change is tried with again and again: minutes.
test: $(VENV)/.test fast-lint
	$(PYTEST) -n $(TEST_WORKERS) -m 'not exhaustive'

# Everything that runs here unattended. With DAY=N a fifth of the exhaustive tests and of those on SLURM, as CI runs it:
# another one each day.
DAY ?=
test-all: $(VENV)/.test
	$(PYTEST) -n $(TEST_WORKERS) $(if $(DAY),--day $(DAY))
	$(MAKE) test-slurm
	$(MAKE) test-kubernetes

# `make test` so many times, every second time on a busy machine whose processes are stopped at random.
N ?= 20
test-repeat: $(VENV)/.test fast-lint
	$(BIN)/python tools/repeat_tests.py $(N)

# Brings clusters of namespaces up on this machine. As root it installs the Debian packages it needs; exit code 4 where
# it may not, or where no namespaces can be made.
test-slurm: $(VENV)/.test
	$(BIN)/python -m tests.slurm -n $(SLURM_WORKERS) --dist worksteal $(if $(DAY),--day $(DAY))

# Pods as `dsrun render-k8s` writes them, in namespaces of this machine; packages and exit code 4 as above.
test-kubernetes: $(VENV)/.test
	$(BIN)/python -m tests.kubernetes

# The wheel, and a run that goes on under other versions of Python and is exported there: those of python3.12, 3.13 … that
# are on this machine, each installed with 5 GB of packages. Debian's own python3 is a part of `make test`.
test-pythons: $(VENV)/.test
	$(BIN)/python -m tests.interpreters

# The steps of the Dockerfile in fresh roots of Debian, and trainings in what they make. As root: it installs debootstrap,
# and mounts overlays; exit code 4 where it may not.
test-image: $(VENV)/.test
	$(BIN)/python -m tests.image

# Every fault at every phase of a run: half an hour. As root also the faults of disks. `make test-all` has nine of them.
test-faults: $(VENV)/.test
	$(BIN)/python -m tests.faults

# Five hundred kills at random moments of saves: half an hour.
test-kills: $(VENV)/.test
	$(BIN)/python -m tests.faults.kill_saves --kills 500

# A CUDA wheel without a GPU: several gigabytes of packages and some minutes. Not part of `make test`.
test-cuda-wheel: $(VENV)/.test $(CUDA_VENV)/.ready
	DSRUN_CUDA_PYTHON=$(abspath $(CUDA_VENV))/bin/python $(BIN)/python -m pytest tests/cuda_wheel

# What only a GPU can run; elsewhere every test is skipped. The correctness half of `make bench-gpu`.
test-gpu: $(VENV)/.test
	$(BIN)/python -m pytest tests/gpu

fast-lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: fast-lint
	$(BIN)/mypy
	$(BIN)/lint-imports

# Those that take less than twenty minutes together; the long ones: `python -m bench NAME`, see docs/benchmarks.md.
bench: $(VENV)/.test
	$(BIN)/python -m bench

# Ten minutes: the wheel of DeepSpeed's operations is built and installed beside checks and timings; the table is in
# runs/bench-gpu. `make bench-gpu FULL=--full` takes over an hour.
bench-gpu: $(VENV)/.test
	$(BIN)/python -m bench.gpu $(FULL)

docs: $(VENV)/.train
	$(BIN)/python -m tools.docs

# The table of docs/models.md: every published config is certified that is not yet with these versions, one after another.
# An hour or two; it goes on where it was stopped. `make certify MODELS="gpt2 opt-125m"`: these anew.
certify: $(VENV)/.train
	$(BIN)/python -m tools.certify $(MODELS)
	$(MAKE) docs

# Another tenth of them each day, for six minutes at most; one that fails what it did not is an error.
certify-tenth: $(VENV)/.train
	$(BIN)/python -m tools.certify --tenth --minutes 5

# Brings dsrun/locale up to date with the texts of the code, and compiles it.
catalogue: $(VENV)/.test
	$(BIN)/python -m tools.catalogue

# `==` would also take 2.13.0+cpu where an index has one; `===` compares the whole version.
$(CUDA_VENV)/.ready:
	$(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		'torch===2.13.0' 'cuda-toolkit[nvcc,cccl,crt,nvvm,cudart,profiler]==13.0.3' ninja 'setuptools>=70.1'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dsrun needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 4; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[train]'
	@touch $@

$(VENV)/.test: $(VENV)/.train
	$(INSTALL) --editable '.[train,test]'
	@touch $@

$(VENV)/.lint: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[lint]'
	@touch $@

clean:
	rm -rf $(VENV) $(CUDA_VENV) .venv-3.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
