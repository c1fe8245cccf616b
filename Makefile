# Everything runs in .venv, which is made on first use. PYTHON chooses the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The CPU build: a plain torch would bring gigabytes of CUDA. Without it the tests of slosh.torch are skipped.
TORCH ?= torch==2.13.0
NATIVE := $(wildcard src/slosh/native/*) CMakeLists.txt pyproject.toml

.PHONY: demo serve test test-long test-sanitize lint lint-page paper paper-quick bench-embed bench-search bench-growth bench-index bench-promise bench-parts bench-postgres bench-shards bench-batch bench-server bench-torch bench-learn bench-points bench-gpu docs clean

demo: $(VENV)/.ready            ## build an index of handwritten digits, search it, draw neighbours; writes demo/
	$(BIN)/slosh demo

serve: $(VENV)/.ready           ## the same, and then a page to draw digits on, until Ctrl-C
	$(BIN)/slosh demo --serve

test: $(VENV)/.ready            ## all tests but the long ones, about 8 minutes on two cores
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-long: test-sanitize        ## the long campaigns: kills, attacks, damaged files, full disks, histories, sanitizers
	$(BIN)/python -m pytest -n 2 --dist loadfile -m long

test-sanitize: $(VENV)/.ready   ## the tests of the kernel with AddressSanitizer and UndefinedBehaviorSanitizer; TESTS= chooses
	$(BIN)/python tests/sanitize.py $(TESTS)

lint: $(VENV)/.ready            ## ruff, mypy, and the layers of the design
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

lint-page:                      ## the page of slosh serve: types by tsc, style by biome; needs npm, skipped without
	tools/page/check

paper: $(VENV)/.ready           ## the paper's experiments, an hour, goes on where it stopped; writes docs/results/paper.*
	$(BIN)/python benchmarks/paper

paper-quick: $(VENV)/.ready     ## the same on a part of the sets, minutes; writes benchmarks/results/paper-quick/
	$(BIN)/python benchmarks/paper --quick

bench-embed: $(VENV)/.ready     ## the kernel beside its peers; writes benchmarks/results/embed.json
	$(BIN)/python benchmarks/bench_embed.py

bench-search: $(VENV)/.ready    ## LadderSearch beside the best of its peers, hours; writes benchmarks/results/search.json
	$(BIN)/python benchmarks/bench_search.py

bench-growth: $(VENV)/.ready    ## queries per second and memory up to ten million vectors, half an hour; writes docs/results/growth.json
	$(BIN)/python benchmarks/growth.py

bench-index: $(VENV)/.ready     ## the durable index, 30 minutes; writes benchmarks/results/index.json
	$(BIN)/python benchmarks/bench_index.py

bench-promise: $(VENV)/.ready   ## whether the stated recall is kept, an hour; writes benchmarks/results/promise.json
	$(BIN)/python benchmarks/promise_study.py

bench-parts: $(VENV)/.ready     ## part search beside all distances, minutes; writes docs/results/parts.json
	$(BIN)/python benchmarks/bench_parts.py

bench-postgres: $(VENV)/.ready  ## an index in PostgreSQL beside one in a folder, minutes; writes docs/results/postgres.json
	$(BIN)/python benchmarks/bench_postgres.py

bench-shards: $(VENV)/.ready    ## a collection in shards on Ray beside the same in one process, minutes; writes docs/results/shards.json
	$(BIN)/python benchmarks/bench_shards.py

bench-batch: $(VENV)/.ready     ## batch jobs on Ray beside a plain loop, ten minutes; writes docs/results/batch.json
	$(BIN)/python benchmarks/bench_batch.py

bench-server: $(VENV)/.ready    ## slosh serve beside the same searches without a server, minutes; writes docs/results/server.json
	$(BIN)/python benchmarks/bench_server.py

bench-torch: $(VENV)/.ready     ## the layer of slosh.torch beside a plain torch expression, minutes; writes docs/results/torch.json
	$(BIN)/python benchmarks/bench_torch.py

bench-learn: $(VENV)/.ready     ## embeddings learnt from labels: what they find, what they cost, an hour or more; writes docs/results/learn.json
	$(BIN)/python benchmarks/learn_study.py

bench-points: $(VENV)/.ready    ## the network "points" on ModelNet40, within ten minutes on a GPU; writes docs/results/learn_points.json
	$(BIN)/python benchmarks/learn_points.py

bench-gpu: $(VENV)/.ready       ## what a GPU does, minutes on a machine with one; writes docs/results/gpu.json
	$(BIN)/python benchmarks/bench_gpu.py

docs: $(VENV)/.ready            ## redraw the pictures of docs/
	$(BIN)/python docs/draw_embedding.py
	$(BIN)/python docs/draw_field.py
	$(BIN)/python docs/draw_when_not.py
	$(BIN)/python docs/draw_hashing.py
	$(BIN)/python docs/draw_rank.py
	$(BIN)/python docs/draw_parts.py
	$(BIN)/python docs/draw_search.py
	$(BIN)/python docs/photograph_page.py

$(VENV)/.ready: $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet '$(TORCH)' || echo 'no $(TORCH) for this Python: the tests of slosh.torch will be skipped'
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis benchmarks/results
