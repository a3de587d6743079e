# Two commands do all the set-up on a machine that has Python 3.11 or newer, git and make: `make demo`, `make test`.
# The environment is .venv, made when missing and brought up to date when pyproject.toml changes.
#   make test ARGS="-k retry -n 0"      make test PYTHON=/opt/python3.12/bin/python3

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python3.14; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
ARGS ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test check bench clean

help:
	@echo "make demo    run the main job on an embedded Postgres: two services, one is killed, nothing is lost"
	@echo "make test    all tests, on LEASEQUEUE_TEST_URL, Docker or the embedded Postgres (ARGS=... goes to pytest)"
	@echo "make check   format, lint, types and import contracts"
	@echo "make bench   leasequeue and its peers in turn (about two hours; ARGS=\"drain --rounds 1\" for less), into benchmarks/results"
	@echo "make clean   remove the .venv that make made, caches and the embedded database"

demo: .venv/.ready-run
	@$(BIN)/leasequeue demo $(ARGS)

test: .venv/.ready-dev
	@# The tests start this package some 700 times. Where PYTHONDONTWRITEBYTECODE is set, each would compile it once more.
	@$(BIN)/python -m compileall -q leasequeue examples tests
	@$(BIN)/pytest -n 4 --dist loadgroup $(ARGS)

check: .venv/.ready-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	@# The type checkers side by side, and the import contracts behind the quicker one: each takes a core for most of a minute.
	$(BIN)/pyright & pyright=$$!; $(BIN)/mypy && $(BIN)/lint-imports; rest=$$?; wait $$pyright && exit $$rest

bench: .venv/.ready-bench
	@$(BIN)/python -m benchmarks $(ARGS)

clean:
	[ ! -e .venv/.place ] || rm -rf .venv
	rm -rf .leasequeue .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A copied or moved checkout brings a .venv that still points to its old place, and an upgrade of the system's Python
# may leave one without an interpreter: either is made anew, but only where .venv/.place says that it was made here.
# One that somebody else made is used as it is, and never removed. A stamp is written after a whole installation.
WHOLE := $(shell $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	{ [ ! -e .venv/.place ] || [ "$$(cat .venv/.place)" = "$$(pwd -P)" ]; } && echo yes)
ifneq ($(WHOLE),yes)
.venv/.ready-run .venv/.ready-dev .venv/.ready-bench: anew
.PHONY: anew
anew:
endif

.venv/.ready-run .venv/.ready-dev .venv/.ready-bench: pyproject.toml
	@set -e; extra=embedded; if [ '$@' = .venv/.ready-dev ] || [ -e .venv/.ready-dev ]; then extra=dev; fi; \
	if [ '$@' = .venv/.ready-bench ] || [ -e .venv/.ready-bench ]; then extra="$$extra,bench"; fi; \
	if [ '$(WHOLE)' != yes ]; then \
		if [ -e .venv ] && [ ! -e .venv/.place ]; then \
			echo "there is a .venv that was not made here and has no working Python 3.11 or newer: remove it" >&2; exit 1; \
		fi; \
		if [ -z '$(PYTHON)' ]; then \
			echo "leasequeue needs Python 3.11 or newer; none was found: install it, or say make PYTHON=/path/to/python3" >&2; exit 1; \
		fi; \
		[ "$$('$(PYTHON)' -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null)" = True ] || { \
			echo "'$(PYTHON)' is not a Python 3.11 or newer" >&2; exit 1; }; \
		echo "making .venv with $$('$(PYTHON)' --version)"; rm -rf .venv; mkdir .venv; pwd -P >.venv/.place; \
		'$(PYTHON)' -m venv .venv >/dev/null 2>&1 || { \
			rm -rf .venv; v=$$('$(PYTHON)' -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
			echo "'$(PYTHON)' cannot make a virtual environment; on Debian or Ubuntu: apt-get install python$$v-venv" >&2; exit 1; }; \
	fi; \
	echo "installing leasequeue[$$extra] into .venv (about a minute the first time)"; \
	PIP_ROOT_USER_ACTION=ignore $(BIN)/python -m pip install --disable-pip-version-check -q -e ".[$$extra]" \
		>.venv/install.log 2>&1 || { tail -n 20 .venv/install.log >&2; exit 1; }; \
	touch .venv/.ready-run; case "$$extra" in dev*) touch .venv/.ready-dev;; esac; \
	case "$$extra" in *bench) touch .venv/.ready-bench;; esac
