# Everything a fresh machine needs is Python (3.10 to 3.13), pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# What the work needs; and on top of it torch and what tests need.
CORE := $(VENV)/.installed-core
STAMP := $(VENV)/.installed

.PHONY: tree packages docs lock gate pythons imports demo pictures test test-slow profilers reliability reliability-table reliability-nightly mindspeed-rules mindspeed-passes mindspeed-mamba outside random random-choices random-entries random-depths random-cadence random-lending random-pairs random-placed random-insertions random-layerwise ablation recipes cluster model-campaign tune-campaign test-mindspore dryrun-noise lint install benchmarks clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml | $(BIN)/python
	$(PIP) install -e .
	@touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[test]'
	@touch $(CORE) $@

install: $(STAMP)

demo:
	@echo "Two minutes on two cores; where nothing is installed yet, the packages (0.8 GB in $(VENV)) are half a minute of them."
	@$(MAKE) --no-print-directory $(CORE)
	# The kernels of the solver, compiled once.
	$(BIN)/python -m taylor warm
	# DeepSeek-V3 671B on 1024 ranks: strategies searched, the best eight solved and ranked, a page.
	$(BIN)/python parallel_tool.py --yaml_path config/pretrain_deepseek3_671b_1024p.yaml --full --profile_num 8
	# The same from profiles (synthetic, and labelled so), parsed to ratios, to a ranking.
	$(BIN)/python -m benchmarks.synthetic_profiles --yaml_path output/profile_yaml --output output/synthetic_profiles --limit 3
	$(BIN)/python pipeline_tool.py --profile_data_dir output/synthetic_profiles --time_limit 5 --topn 3
	# The timeline of a run, from its worker logs (synthetic too).
	$(BIN)/python timeline_tool.py --log_dir ./log --trace output/timeline.json --html output/timeline.html
	@echo
	@echo "Next, the commands of README.md, as they are printed there, after:"
	@echo "    source $(BIN)/activate"
	@echo "For one: taylor solve --model llama3-70b --device h100-80g --world_size 64 -o run.sh"

# The pictures at the top of README.md, from the commands that it prints.
pictures: $(CORE)
	$(BIN)/python -m benchmarks.pictures

test: $(STAMP) lint
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

# Tests of four seconds and more each: kills and restarts, fresh clones, real torch stages, brute force.
test-slow: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow

# All modules and the README's commands on the oldest and the newest supported Python that are here, each in a new environment.
pythons: $(STAMP)
	$(BIN)/python -m benchmarks.pythons

# Wheel and sdist, each in new environments of the oldest and the newest Python that are here: minutes.
packages: $(STAMP)
	$(BIN)/python -m benchmarks.packages

# A pipeline stage under real MindSpore in simulation (CPU wheel, extra `mindspore`).
test-mindspore: $(STAMP)
	$(PIP) install -e '.[mindspore]'
	$(BIN)/python -m pytest tests/dryrun/test_mindspore.py -rs

# Plans from dry-runs whose peaks scatter by 2 %, twelve seeds a model: minutes a seed.
dryrun-noise: $(STAMP)
	TAYLOR_DRYRUN_SEEDS=12 $(BIN)/python -m pytest -n auto tests/dryrun/test_check.py tests/dryrun/fitting/test_probes.py -k noise

# Both profilers over gloo with four processes: minutes on two cores.
profilers: $(STAMP)
	TAYLOR_PROFILE_RANKS=4 $(BIN)/python -m pytest tests/profiling/test_measuring.py

# The documentation site in build/site, without a network; every link is checked. To read it:
# python -m http.server --directory build/site
DOCS := $(VENV)/.installed-docs

$(DOCS): pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[docs]'
	@touch $@

docs: $(DOCS) tree
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m benchmarks.site_check build/site

# The versions with which the tests and the site were last built, with hashes, on every supported Python.
lock: $(STAMP)
	$(PIP) install 'uv>=0.5'
	$(BIN)/uv pip compile pyproject.toml --extra test --extra docs --universal --generate-hashes --python-version 3.10 --no-header --quiet -o requirements-dev.txt

# 20,000 predictions beside the last release's: what moved, by launcher and cause. Three minutes on two cores.
gate: $(STAMP)
	$(BIN)/python -m benchmarks.gate

# What must never go wrong, where its code has changed: docs/reliability.md. A killed campaign goes on where it was.
reliability: $(STAMP)
	$(BIN)/python -m benchmarks.reliability

# The whole table at this commit, in samples that are sized for 90 minutes on two cores.
reliability-table: $(STAMP)
	$(BIN)/python -m benchmarks.reliability --table

# The same in samples, for 15 minutes: what was measured longest ago first.
reliability-nightly: $(STAMP)
	$(BIN)/python -m benchmarks.reliability --nightly

# MindSpeed's start rules against its own argument classes, of three checkouts: two minutes on two cores.
MINDSPEED_ROOT ?= output/outside
mindspeed-rules: $(STAMP)
	$(BIN)/python -m benchmarks.mindspeed --megatron $(MINDSPEED_ROOT)/Megatron-LM --mindspeed $(MINDSPEED_ROOT)/MindSpeed --mindspeed_llm $(MINDSPEED_ROOT)/MindSpeed-LLM

# Passes of MindSpeed's own schedules and layers: half a minute.
mindspeed-passes: $(STAMP)
	$(BIN)/python -m benchmarks.mindspeed.own_passes --mindspeed $(MINDSPEED_ROOT)/MindSpeed

# Bytes of MindSpeed-LLM's own Mamba-2 mixer: two minutes.
mindspeed-mamba: $(STAMP)
	$(PIP) install einops
	$(BIN)/python -m benchmarks.mindspeed.own_mamba --megatron $(MINDSPEED_ROOT)/Megatron-LM --mindspeed $(MINDSPEED_ROOT)/MindSpeed --mindspeed_llm $(MINDSPEED_ROOT)/MindSpeed-LLM

# megatron-core, whose own code the campaign runs; the clones it also reads are in benchmarks/reliability/outside.py.
outside: $(STAMP)
	$(PIP) install --no-deps --target output/outside/packages megatron-core==0.16.1

# Two thousand stacks of alternating kinds, each against the enumeration of all its plans: about an hour on two cores.
random: $(STAMP)
	$(BIN)/python -m benchmarks.random_instances

# The same with up to five choices a layer (offload, recompute by module) and limits of the host: about half an hour.
random-choices: $(STAMP)
	$(BIN)/python -m benchmarks.random_instances --choices

# The same with MTP layers and heads on one of several chunks, and transfers that differ by boundary.
random-entries: $(STAMP)
	$(BIN)/python -m benchmarks.random_instances --entries

# The same with MTP layers that are placed one by one and share memory on a stage.
random-depths: $(STAMP)
	$(BIN)/python -m benchmarks.random_instances --depths

# The same with layers that lie on the chunk of the layer before them (sparse attention that reuses chosen tokens).
random-cadence: $(STAMP)
	$(BIN)/python -m benchmarks.random_instances --cadence

# Choices that keep activations on the device of another stage, against brute force.
random-lending: $(STAMP)
	$(BIN)/python -m benchmarks.random_instances --lending

# The same with forwards and backwards that run as one pass, in which layers hide each other's communication.
random-pairs: $(STAMP)
	$(BIN)/python -m benchmarks.random_instances --pairs --instances 500

# Encoders in the bubbles of random plans against brute force.
random-insertions: $(STAMP)
	$(BIN)/python -m benchmarks.random_insertions

# Chunks on any stages: plans against brute force, then placements and orders against an enumeration of both.
random-placed: $(STAMP)
	$(BIN)/python -m benchmarks.random_instances --placed --instances 200
	$(BIN)/python -m benchmarks.placements

# Layer-wise plans against brute force, under the checker and beside Galvatron's own: hours on two cores.
random-layerwise: $(STAMP)
	$(BIN)/python -m benchmarks.layerwise_campaign

# Every method of the solver off, every constant at half and double: docs/mathematics.md. Hours on one core; goes on
# where it was.
ablation: $(STAMP)
	$(BIN)/python -m benchmarks.ablation

# Workers killed, eight beside one, a thousand simulated: docs/cluster.md. About an hour on two cores.
cluster: $(STAMP)
	$(BIN)/python -m benchmarks.cluster

# docs/recipes.md: published recipes against the best plan, ten minutes each at most.
recipes: $(STAMP)
	$(BIN)/python -m benchmarks.recipe_plans --risk 0 --page

# Forty models on five devices under three frameworks, each file written and read again: hours on two cores.
model-campaign: $(STAMP)
	$(BIN)/python -m benchmarks.model_campaign

# docs/tune.md: hidden networks on stand-in clusters, planned from small runs; goes on where it was.
tune-campaign: $(STAMP)
	$(BIN)/python -m benchmarks.tune_campaign build/tune_campaign --networks 100

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
	$(BIN)/python -m benchmarks.words
	$(BIN)/mypy

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
