# Everything a fresh machine needs is Python (>= 3.10), pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: tree imports demo test reliability test-mindspore dryrun-noise lint install benchmarks clean

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/python parallel_tool.py --yaml_path config/pretrain_deepseek3_671b_1024p.yaml --full
	# The second half: profiles (synthetic, and labelled so), parsed to ratios, to a ranking.
	$(BIN)/python -m benchmarks.synthetic_profiles --yaml_path output/profile_yaml --output output/synthetic_profiles --limit 6
	$(BIN)/python pipeline_tool.py --profile_data_dir output/synthetic_profiles --time_limit 5 --topn 6

test: $(STAMP) lint
	$(BIN)/python -m pytest -n auto --dist worksteal

# A pipeline stage under real MindSpore in simulation (CPU wheel, extra `mindspore`).
test-mindspore: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[mindspore]'
	$(BIN)/python -m pytest tests/dryrun/test_mindspore.py -rs

# Plans from dry-runs whose peaks scatter by 2 %, twelve seeds a model: minutes a seed.
dryrun-noise: $(STAMP)
	TAYLOR_DRYRUN_SEEDS=12 $(BIN)/python -m pytest -n auto tests/dryrun/test_check.py tests/dryrun/fitting/test_probes.py -k noise

# What must never go wrong, measured anew: docs/reliability.md. A killed campaign goes on where it was.
reliability: $(STAMP)
	$(BIN)/python -m benchmarks.reliability

# The package as it is installed, in links: what reads imports without running them needs it so.
PACKAGES := $(filter-out taylor tests benchmarks,$(patsubst %/__init__.py,%,$(wildcard */__init__.py)))
TREE := build/tree/taylor

tree:
	@rm -rf $(TREE) && mkdir -p $(TREE)
	@ln -s $(CURDIR)/taylor/* $(TREE)
	@for name in $(PACKAGES); do ln -s $(CURDIR)/$$name $(TREE)/$$name; done

imports: $(STAMP) tree
	@cd build/tree && $(CURDIR)/$(BIN)/lint-imports --no-cache --config $(CURDIR)/pyproject.toml

lint: $(STAMP) tree imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
