# Everything a developer or CI runs. `make help` lists it.
#
# All tools live in .venv, at the versions of requirements/*.txt, put there by uv: it keeps a cache, so that LMCache's
# 6 GB are downloaded once and hard-linked from then on. Where uv does not work: make INSTALLER=pip TARGET

PYTHON ?= python3
INSTALLER ?= uv

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
# One target directory and one interpreter for maturin, clippy and the tests, so that none rebuilds another's work.
export CARGO_TARGET_DIR := $(CURDIR)/target
export PYO3_PYTHON := $(CURDIR)/$(PY)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH):$(HOME)/.cargo/bin

# LMCache and torch take ten seconds to import where Python may not keep what it has compiled, and tests start them by the dozen.
export PYTHONDONTWRITEBYTECODE :=

# In CI the committed Cargo.lock decides; at a desk an edit of Cargo.toml may change it.
LOCKED := $(if $(CI),--locked)
# The Python bindings are linked into an interpreter, not into a test program: pytest tests them.
RUST_TESTS := cargo test --workspace --exclude kvring-python --no-fail-fast $(LOCKED)
PYTHON_SOURCES = $(wildcard connector_py/build_backend.py connector_py/kvring tests/python tests/support tests/report.py benches examples tools)
REPORTS := target/test-reports

# $(1): the interpreter of a virtual environment; $(2): what is installed into it.
ifeq ($(INSTALLER),pip)
install_into = $(1) -m pip install --quiet --disable-pip-version-check $(2)
MATURIN_INSTALLER :=
else
install_into = $(VENV)/bin/uv pip install --quiet --python $(1) $(2) || \
	{ echo "make: uv could not install it; try plain pip: make INSTALLER=pip $(MAKECMDGOALS)" >&2; exit 1; }
MATURIN_INSTALLER := --uv
endif
install = $(call install_into,$(PY),$(1))

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-19s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# --- the environment ---

.PHONY: need-cargo
need-cargo:
	@command -v cargo >/dev/null || {
		echo "make: no cargo. Install Rust with rustup (https://rustup.rs, or your system's rustup package), then run make again." >&2
		exit 1
	}
	command -v cc >/dev/null || {
		echo "make: no C linker (cc), which Rust needs. On Debian: apt-get install build-essential" >&2
		exit 1
	}

$(PY):
	@command -v $(PYTHON) >/dev/null || {
		echo "make: no $(PYTHON). Install Python 3.10 to 3.13, or name one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2
		exit 1
	}
	$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || {
		echo "make: $$($(PYTHON) --version) will not do, it takes 3.10 to 3.13. Name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2
		exit 1
	}
	$(PYTHON) -m venv $(VENV) || {
		rm -rf $(VENV)
		echo "make: $(PYTHON) can't make a virtual environment. On Debian: apt-get install python3-venv" >&2
		exit 1
	}

$(VENV)/.stamp-tools: requirements/dev.txt | $(PY)
	@if [ "$(INSTALLER)" = uv ]; then
		$(PY) -m pip install --quiet --disable-pip-version-check "$$(grep '^uv==' requirements/dev.txt)"
	fi
	$(call install,-r requirements/dev.txt)
	touch $@

$(VENV)/.stamp-lmcache: requirements/lmcache.txt $(VENV)/.stamp-tools
	@echo "make: installing LMCache, about 6 GB the first time"
	$(call install,-r requirements/lmcache.txt)
	touch $@

PEERS := $(VENV)/peers

$(PEERS)/.stamp: requirements/peers.txt $(VENV)/.stamp-lmcache
	@$(call install,--no-deps --target $(PEERS) -r requirements/peers.txt)
	touch $@

# The next LMCache, beside the first one's dependencies, which fit it too. kvring comes as the wheel that users get.
NEXT_VENV := .venv-next
NEXT_PY := $(NEXT_VENV)/bin/python

$(NEXT_VENV)/.stamp: requirements/lmcache-next.txt requirements/lmcache.txt $(VENV)/.stamp-tools
	@echo "make: installing the next LMCache"
	$(PYTHON) -m venv $(NEXT_VENV)
	grep -v '^lmcache==' requirements/lmcache.txt > $(NEXT_VENV)/dependencies.txt
	$(call install_into,$(NEXT_PY),-r requirements/lmcache-next.txt -r requirements/dev.txt -r $(NEXT_VENV)/dependencies.txt)
	touch $@

# vLLM and SGLang, as far as they run here. kvring comes as the wheel, too.
ENGINES_VENV := .venv-engines
ENGINES_PY := $(ENGINES_VENV)/bin/python

$(ENGINES_VENV)/.stamp: requirements/engines.txt requirements/engines-cpu.txt requirements/lmcache.txt $(VENV)/.stamp-tools
	@echo "make: installing vLLM and SGLang, without what they need for GPUs"
	$(PYTHON) -m venv $(ENGINES_VENV)
	if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
		echo "make: SGLang has no package for $$($(PYTHON) --version): the tests with vLLM and SGLang will be skipped"
		touch $@
		exit
	fi
	grep -v '^lmcache==' requirements/lmcache.txt > $(ENGINES_VENV)/constraints.txt
	grep -Ev '^(vllm|sglang)==' requirements/engines.txt > $(ENGINES_VENV)/dependencies.txt
	$(call install_into,$(ENGINES_PY),-r $(ENGINES_VENV)/dependencies.txt -r requirements/dev.txt -c $(ENGINES_VENV)/constraints.txt)
	$(call install_into,$(ENGINES_PY),--no-deps $$(grep -E '^(vllm|sglang)==' requirements/engines.txt))
	kernels=$(ENGINES_VENV)/kernels
	if ! grep -qw avx2 /proc/cpuinfo; then
		echo "make: this processor has no AVX2: the tests that run vLLM on it will be skipped"
	elif ! ( $(call install_into,$(ENGINES_PY),--no-deps --target $$kernels -r requirements/engines-cpu.txt) ); then
		echo "make: no $$(tail -1 requirements/engines-cpu.txt) for this machine: the tests that run vLLM on its processors will be skipped"
	else
		mv $$kernels/vllm/_C*.abi3.so $(ENGINES_VENV)/lib/python3*/site-packages/vllm/
	fi
	rm -rf $$kernels
	touch $@

# One wheel for all Pythons from 3.11 on. The stable interface of 3.10 has no buffers: it has a wheel of its own.
ABI3 := --features pyo3/abi3-py311

WHEEL := target/wheel/.stamp

# Of the kind that users get for this Python.
$(WHEEL): $(VENV)/.stamp-kvring $(wildcard connector_py/kvring/*.py connector_py/kvring/*/*.py connector_py/kvring/*/*/*.py)
	@rm -rf target/wheel
	abi3=$$($(PY) -c 'import sys; print("$(ABI3)" if sys.version_info >= (3, 11) else "")')
	$(VENV)/bin/maturin build --quiet --release --out target/wheel --interpreter $(PY) $(LOCKED) $$abi3
	touch $@

$(NEXT_VENV)/.stamp-kvring $(ENGINES_VENV)/.stamp-kvring: %/.stamp-kvring: %/.stamp $(WHEEL)
	@$(call install_into,$*/bin/python,--no-deps --force-reinstall target/wheel/*.whl)
	touch $@

$(VENV)/.stamp-wheels: requirements/wheels.txt $(VENV)/.stamp-tools
	@$(call install,-r requirements/wheels.txt)
	touch $@

$(VENV)/.stamp-docs: requirements/docs.txt $(VENV)/.stamp-tools
	@$(call install,-r requirements/docs.txt)
	touch $@

$(VENV)/.stamp-bench: requirements/bench.txt $(VENV)/.stamp-lmcache
	@$(call install,-r requirements/bench.txt)
	touch $@

# The install is editable: edits of .py files need no build. A native module newer than the stamp is somebody else's,
# perhaps a debug build, and a missing one was deleted: both are built anew.
NATIVE_MODULE := $(wildcard connector_py/kvring/_native*.so)
RUST_SOURCES := $(shell find src loadgen/src connector_py/src -name '*.rs') \
	$(wildcard Cargo.toml Cargo.lock connector_py/Cargo.toml loadgen/Cargo.toml build.rs connector_py/build.rs .cargo/config.toml)

$(VENV)/.stamp-kvring: $(VENV)/.stamp-tools pyproject.toml $(RUST_SOURCES) $(or $(NATIVE_MODULE),force) | need-cargo
	@echo "make: building kvring, about two minutes the first time"
	$(VENV)/bin/maturin develop --quiet --release $(MATURIN_INSTALLER) $(LOCKED)
	touch $@

.PHONY: force
force:

.PHONY: build
build: $(VENV)/.stamp-kvring ## kvring's release build into .venv

# The aarch64 wheels take `rustup target add aarch64-unknown-linux-gnu`, or RUSTC=PATH of a compiler that has this target. The
# paths of the builder's machine do not get into the wheels: the same commit, compiler and tools give the same library.
.PHONY: wheels
wheels: $(VENV)/.stamp-wheels | need-cargo ## wheels for CPython 3.10, and 3.11 and later, and an sdist, into dist (10 minutes)
	@rm -rf dist
	export KVRING_COMMIT=$$(git rev-parse HEAD 2>/dev/null || true)
	export RUSTFLAGS="--remap-path-prefix=$(CURDIR)=kvring --remap-path-prefix=$${CARGO_HOME:-$(HOME)/.cargo}=cargo"
	build() { env -u PYO3_PYTHON $(VENV)/bin/maturin build --release --zig --compatibility manylinux_2_28 --out dist $(LOCKED) "$$@"; }
	# The first of some versions that is in PATH, else in pyenv.
	find_python() {
		for version in "$$@"; do
			for candidate in "$$(command -v python$$version || true)" $(HOME)/.pyenv/versions/$$version.*/bin/python; do
				if "$$candidate" -c '' 2>/dev/null; then echo "$$candidate"; return; fi
			done
		done
		echo "wheels: no python$$1: no wheel for it" >&2
	}
	abi3=$$(find_python 3.11 3.12 3.13)
	old=$$(find_python 3.10)
	[ -z "$$abi3" ] || build $(ABI3) --interpreter "$$abi3"
	[ -z "$$old" ] || build --interpreter "$$old"
	if [ -d "$$($${RUSTC:-rustc} --print target-libdir --target aarch64-unknown-linux-gnu)" ]; then
		build --target aarch64-unknown-linux-gnu $(ABI3) --interpreter python3.11
		build --target aarch64-unknown-linux-gnu --interpreter python3.10
	else
		echo "wheels: none for aarch64, this compiler lacks the target: rustup target add aarch64-unknown-linux-gnu"
	fi
	$(VENV)/bin/maturin sdist --out dist

# For instance: make release RELEASE=--no-tests
RELEASE ?=

.PHONY: release
release: build $(VENV)/.stamp-wheels $(VENV)/.stamp-docs ## the files of a release into dist, checked; publishes nothing
	@$(PY) -m tools.release $(RELEASE)

.PHONY: engines
engines: $(ENGINES_VENV)/.stamp-kvring ## vLLM and SGLang into .venv-engines, once, as far as they run without a GPU

.PHONY: lmcache
lmcache: $(VENV)/.stamp-lmcache ## LMCache into .venv, once

# --- what it's for ---

.PHONY: demo
demo: build lmcache engines ## a real vLLM with and without kvring, and after kill -9 (2 minutes)
	@$(PY) -m examples.quickstart

# $(1): further arguments of pytest; $(2): of cargo test; $(3): tests for the next LMCache; $(4): with vLLM and SGLang. All run whatever
# the first says, and the counts come last. Suites of Python wait more than they work, so more of them run than there are processors.
# The timeout of a test is a thread of Python, which a native call that keeps the interpreter's lock stops: faulthandler ends those.
PYTEST = -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true
define run_tests
	mkdir -p $(REPORTS)
	rm -f $(REPORTS)/*
	status=0
	$(RUST_TESTS) $(2) 2>&1 | tee $(REPORTS)/rust.log || status=1
	$(PY) $(PYTEST) --ignore tests/python/engines --junitxml=$(REPORTS)/python.xml $(1) || status=1
	$(if $(3),$(NEXT_PY) $(PYTEST) --junitxml=$(REPORTS)/python-next.xml $(3) || status=1)
	$(if $(4),$$(test -e $(ENGINES_VENV)/constraints.txt && echo $(ENGINES_PY) || echo $(PY)) $(PYTEST) --junitxml=$(REPORTS)/python-engines.xml $(4) || status=1)
	[ $$status = 0 ] || echo "make: there are failures, see above" >&2
	$(PY) tests/report.py $(REPORTS)
	exit $$status
endef

# What differs between versions of LMCache shows here.
NEXT_TESTS := $(addprefix tests/python/lmcache/test_,adapter.py package.py plugin.py plugin_manager.py server.py shared_tier.py) \
	-k "not native_plugin"

.PHONY: test
test: build lmcache $(PEERS)/.stamp $(NEXT_VENV)/.stamp-kvring engines ## all tests, with the real LMCache, vLLM and SGLang
	@$(call run_tests,,,$(NEXT_TESTS),tests/python/engines)

# The engine finds LMCache behind its own packages: both environments have the same versions.
.PHONY: test-lmcache-engine
test-lmcache-engine: build lmcache engines ## the real vLLM above the real server of LMCache, on processors (10 minutes)
	@KVRING_TEST_LMCACHE_ENGINE=1 $(ENGINES_PY) -m pytest tests/python/engines/cpu/test_lmcache_cpu.py

.PHONY: check
check: export KVRING_MATRIX ?= quick
check: lint ## the daily round: lint, and all tests but the slow ones and those that need LMCache
	@$(call run_tests,-m "not lmcache and not slow",-- --skip every_bit_of --skip pairs_of_mechanisms --skip beside_random_faults)

.PHONY: matrix
matrix: export KVRING_MATRIX := full
matrix: build ## every layout on every kind of disk with every engine, all in full (as root, 25 minutes)
	@$(PY) -m pytest tests/python/matrix

.PHONY: power-loss
power-loss: export KVRING_POWER_LOSS_IMAGES ?= 500
power-loss: build ## power loss at 500 writes below the file system and below bare devices (as root, 15 minutes)
	@$(PY) -m pytest -rA tests/python/test_power_loss_writes.py

# For instance: make vm VM='--only 6.1/xfs'
VM ?=

.PHONY: vm
vm: build need-cargo $(VENV)/.stamp-tools ## the suites on Linux 5.10 to the newest in virtual machines, with ext4, XFS and bare drives (20 minutes)
	@$(PY) -m tools.vm $(VM)

# For instance: make vm-power-loss VM_POWER_LOSS='--cuts 200 --seed 7 --only xfs'
VM_POWER_LOSS ?=

.PHONY: vm-power-loss
vm-power-loss: build ## virtual machines lose power at 50 moments (no root, no KVM, 20 minutes)
	@$(PY) -m tools.vm.power_loss $(VM_POWER_LOSS)

.PHONY: lint
lint: build ## format, clippy, cargo doc, ruff, mypy, stubtest, cargo-deny
	@set -x
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features $(LOCKED) -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --workspace $(LOCKED)
	env -u PYO3_PYTHON PYO3_NO_PYTHON=1 cargo check --package kvring-python $(ABI3) $(LOCKED)
	ruff check $(PYTHON_SOURCES)
	ruff format --check $(PYTHON_SOURCES)
	mypy $(PYTHON_SOURCES)
	# Only the native module has a stub. The rest carries its types itself, and part of it imports LMCache.
	$(PY) -m mypy.stubtest --mypy-config-file pyproject.toml kvring._native
	{ set +x; } 2>/dev/null
	if command -v cargo-deny >/dev/null; then
		cargo deny --offline check bans licenses sources
	else
		echo "lint: cargo-deny skipped, it is not installed (cargo install --locked cargo-deny)"
	fi

# For instance: make bench-guard BENCH_GUARD='--base v0.1.0 --path /mnt/nvme'
BENCH_GUARD ?=

.PHONY: bench-guard
bench-guard: build ## fails where this tree is slower than its merge base, or takes more processor time (15 minutes)
	@$(PY) -m benches.guard $(BENCH_GUARD)

# For instance: make harden HARDEN='--seed 7'
HARDEN ?=

.PHONY: harden
harden: build ## search for what breaks the promises, by every tool, beside a soak (75 minutes); tools/README.md
	@$(PY) -m tools all $(HARDEN)

.PHONY: harden-quick
harden-quick: build ## the same as in CI: what finds most in minutes
	@$(PY) -m tools all --quick $(HARDEN)

# For instance: make bench BENCH='--only mixed-disk'
BENCH ?=

.PHONY: bench
bench: build $(VENV)/.stamp-bench ## side by side with LMCache's own and fio, into target/bench (as root, 60 minutes)
	@$(PY) -m benches.compare $(BENCH)

.PHONY: bench-quick
bench-quick: build $(VENV)/.stamp-bench ## the same, much smaller: a first look
	@$(PY) -m benches.compare --quick $(BENCH)

.PHONY: reference
reference: build ## docs/reference, made of the code
	@$(PY) -m tools.reference

.PHONY: docs
docs: $(VENV)/.stamp-docs ## the documents as a book, into target/book, with every link checked
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build

.PHONY: pictures
pictures: ## render the diagrams of the documents (needs graphviz)
	@for source in docs/images/*.dot; do dot -Tsvg "$$source" -o "$${source%.dot}.svg"; done

# For instance: make eviction EVICTION='--traces DIRECTORY'
EVICTION ?=

.PHONY: eviction
eviction: need-cargo $(VENV)/.stamp-tools ## hit ratios of the eviction policies on traces, into target/bench (2 minutes)
	@$(PY) -m benches.eviction $(EVICTION)

# For instance: make placement PLACEMENT='--traces DIRECTORY'
PLACEMENT ?=

.PHONY: placement
placement: need-cargo $(VENV)/.stamp-tools ## what write streams save inside a drive, by a model of one, into target/bench (as root, 10 minutes)
	@$(PY) -m benches.placement $(PLACEMENT)

# For instance: make fleet FLEET='--trace FILE'
FLEET ?=

.PHONY: fleet
fleet: $(VENV)/.stamp-tools ## many nodes with a shared tier or without, by simulation, into target/bench (3 minutes)
	@$(PY) -m benches.fleet $(FLEET)

.PHONY: clean
clean: ## remove all that was built, and the caches; .venv keeps its tools
	@rm -rf target dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f connector_py/kvring/_native*.so $(VENV)/.stamp-kvring
	find . \( -path ./$(VENV) -o -path ./$(NEXT_VENV) -o -path ./$(ENGINES_VENV) \) -prune -o -type d -name __pycache__ -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## clean, and the virtual environments too
	@rm -rf $(VENV) $(NEXT_VENV) $(ENGINES_VENV)
