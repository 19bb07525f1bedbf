# Everything a person types.  Needs Python 3.11 or newer, pip and make, and nothing else:
# the rest goes into .venv/, pinned by hash: in requirements.lock what the relay runs on, in
# requirements-test.lock that and what its tests need, in requirements-postgresql.lock that and the extra.  On Debian 12:
#     apt install --no-install-recommends make python3 python3-pip
# pip's own configuration (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf) is honoured.

PYTHON ?= python3
POLICY ?= policy.yaml
# What `make crash` draws from, and about how many seconds it may take.
ifndef SEED
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif
BUDGET ?= 300

VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
TEST_READY := $(VENV)/.ready-to-test
PIP := "$(PYTHON)" -m pip --python $(RUN) --disable-pip-version-check
STREAMS ?= 3
# In the order of their names, by which those that take longest come first.
FILES_AT_ONCE = -m pytest -q -n $(STREAMS) --dist loadfile --no-loadscope-reorder
# The files that have a test with this mark.  To collect all the others takes longer than such tests do.
MARKED = $$(grep -rlF 'mark.$(1)' tests --include='*.py')
PRACTICE_PASSWORD := var/practice-password

# Where `make install` puts it; DESTDIR goes before each of them, as packagers expect.
PREFIX ?= /usr
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
PROGRAM = $(DESTDIR)$(PREFIX)/lib/relay
SHARE = $(DESTDIR)$(PREFIX)/share

.PHONY: help run demo install test test-all check lint size coverage changes crash bench fmt docs lock clean
.DELETE_ON_ERROR:
# What the tests start again and again is compiled once, whatever the environment says.
test test-all changes coverage crash bench: export PYTHONDONTWRITEBYTECODE =

help:
	@echo 'make run     run the relay on policy.yaml (POLICY=FILE for another)'
	@echo 'make demo    watch it pace mail through an upstream that cuts off whoever is too fast'
	@echo 'make install for all users (DESTDIR=, PREFIX=/usr, PYTHON=/usr/bin/python3)'
	@echo 'make test    the tests that notice most, in two minutes and a half'
	@echo 'make test-all   every test but the long crash runs, with the real peers that are there'
	@echo 'make check   format, lint, types, and the tests of make test (make lint: without them)'
	@echo 'make size    lines of each room, of the tests and pages, beside their budgets'
	@echo 'make coverage   which branches the tests of rooms and the simulation reach'
	@echo 'make changes that the tests notice forty faults, put in by hand one at a time'
	@echo 'make crash   the long crash runs (SEED=, BUDGET= in seconds)'
	@echo 'make bench   measure this relay, beside Postfix where it is installed (OPTIONS=--help)'
	@echo 'make fmt     format the code          make clean   remove what these commands made'
	@echo 'make docs    make the pages of docs/ that are made of the code: events, manual'
	@echo 'make lock    pin new versions (needs uv)'

# exec: the relay takes the place of the shell, so signals and its exit status reach make unchanged.
run: $(READY) $(if $(filter policy.yaml,$(POLICY)),$(PRACTICE_PASSWORD))
	@exec $(RUN) -m relay run --policy "$(POLICY)"

demo: $(READY)
	@exec $(RUN) -m relay demo

# A virtual environment whose files, compiled ones too, do not name DESTDIR; an edited policy is left as it is.
install:
	@umask 022; set -e; export PYTHONDONTWRITEBYTECODE=1; "$(PYTHON)" -m venv --without-pip --clear "$(PROGRAM)"; \
	  pip() { "$(PYTHON)" -m pip --python "$(PROGRAM)/bin/python" --disable-pip-version-check install -qq --no-compile "$$@"; }; \
	  pip --require-hashes -r requirements.lock; pip --no-deps --no-build-isolation .; \
	  find "$(PROGRAM)/bin" -type f -delete; \
	  "$(PROGRAM)/bin/python" -m compileall -q -s "$(DESTDIR)" "$(PROGRAM)/lib"; \
	  sed -i -e '/^command = /d' "$(PROGRAM)/pyvenv.cfg"; \
	  install -d "$(DESTDIR)$(PREFIX)/bin" "$(SHARE)/man/man5" "$(SHARE)/man/man8" "$(DESTDIR)$(UNITDIR)" \
	    "$(SHARE)/bash-completion/completions" "$(SHARE)/zsh/vendor-completions" "$(SHARE)/fish/vendor_completions.d" \
	    "$(SHARE)/doc/relay" "$(DESTDIR)$(SYSCONFDIR)/relay"; \
	  printf '%s\n' '#!$(PREFIX)/lib/relay/bin/python -I' 'from relay.cli.main import main' 'main()' >"$(DESTDIR)$(PREFIX)/bin/relay"; \
	  chmod 755 "$(DESTDIR)$(PREFIX)/bin/relay"; \
	  sed -e '1,/^$$/d' -e 's#/opt/relay/.venv/bin/relay#$(PREFIX)/bin/relay#' -e 's#^Documentation=.*#Documentation=man:relay(8)#' \
	    deploy/relay.service >"$(DESTDIR)$(UNITDIR)/relay.service"; \
	  install -m 644 deploy/man/relay.8 "$(SHARE)/man/man8"; install -m 644 deploy/man/relay-policy.5 "$(SHARE)/man/man5"; \
	  install -m 644 deploy/completions/relay.bash "$(SHARE)/bash-completion/completions/relay"; \
	  install -m 644 deploy/completions/_relay "$(SHARE)/zsh/vendor-completions"; \
	  install -m 644 deploy/completions/relay.fish "$(SHARE)/fish/vendor_completions.d"; \
	  cp -R README.md CHANGELOG.md LICENSE docs deploy/prometheus deploy/grafana "$(SHARE)/doc/relay"; \
	  [ -e "$(DESTDIR)$(SYSCONFDIR)/relay/policy.yaml" ] || install -m 644 deploy/policy.yaml "$(DESTDIR)$(SYSCONFDIR)/relay"

# Files of tests, so many at a time: those that compute share the processors with those that wait.
test: $(TEST_READY)
	$(RUN) $(FILES_AT_ONCE) -m 'not full and not measures and not crash'

# Real peers mostly wait: five files at once.  What measures runs alone, and last.
test-all: private STREAMS = 5
test-all: test
	RELAY_TESTS=full $(RUN) $(FILES_AT_ONCE) -m '(full or hypothesis or draws) and not measures and not crash'
	$(RUN) -m pytest -q -m 'measures and not crash' $(call MARKED,measures)

check: lint test

lint: $(TEST_READY)
	$(RUN) -m ruff format --check relay tests
	$(RUN) -m ruff check relay tests
	$(RUN) -m mypy

size:
	@"$(PYTHON)" -m tests.size

# Reported, without a bound.
coverage: $(TEST_READY)
	@rm -rf .coverage && mkdir .coverage
	$(RUN) -m coverage run -p -m pytest -q -m 'not measures and not crash' tests/unit & units=$$!; \
	  $(RUN) -m coverage run -p -m pytest -q -m 'not crash' tests/simulation; stories=$$?; wait $$units && exit $$stories
	$(RUN) -m coverage combine -q
	$(RUN) -m coverage report

# Forty faults, one at a time in a copy; the suite that each row names has to fail.
changes: $(TEST_READY)
	$(RUN) -m tests.changes

# The seed is printed first, so that a failure can be had again: make crash SEED=…
crash: $(TEST_READY)
	@echo 'make crash SEED=$(SEED) BUDGET=$(BUDGET)'
	@RELAY_CRASH_SEED='$(SEED)' RELAY_CRASH_BUDGET='$(BUDGET)' \
	  $(RUN) $(FILES_AT_ONCE) -m crash --hypothesis-seed='$(SEED)' $(call MARKED,crash)

bench: $(TEST_READY)
	$(RUN) -m tests.bench $(OPTIONS)

fmt: $(TEST_READY)
	$(RUN) -m ruff format relay tests
	$(RUN) -m ruff check --fix relay tests

# The tables of events and metrics, the manual pages and the completions; tests hold them to the code.
docs: $(TEST_READY)
	$(RUN) -m tests.unit.telemetry.page
	$(RUN) -m tests.unit.cli.manual_pages

# Not var/: there is the spool, and with it other people's mail.
clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find relay tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --no-emit-index-url: whoever installs chooses the registry.  The tests run on what the relay runs on.
LOCK := uv pip compile -q --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'
lock:
	echo 'hatchling==1.27.0' | $(LOCK) -o requirements.lock pyproject.toml -
	echo 'hatchling==1.27.0' | $(LOCK) --extra test --extra postgresql -c requirements.lock -o requirements-test.lock pyproject.toml -
	$(LOCK) --extra postgresql -c requirements.lock -o requirements-postgresql.lock pyproject.toml

# git keeps no file modes and no secrets: the password of the practice upstream is made here.
$(PRACTICE_PASSWORD): | $(READY)
	@mkdir -p var && umask 077 && $(RUN) -c 'import secrets; print(secrets.token_urlsafe(24))' > $@

# Debian keeps ensurepip in python3-venv, hence --without-pip; pip then installs from outside.
# A Python without even the venv module gets the same three things by hand (PEP 405).
define PLAIN_VENV
import os, sys
python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
os.makedirs(os.path.join("$(VENV)", "lib", "python%d.%d" % sys.version_info[:2], "site-packages"), exist_ok=True)
os.makedirs(os.path.join("$(VENV)", "bin"), exist_ok=True)
for name in ("python", "python3"):
    os.symlink(python, os.path.join("$(VENV)", "bin", name))
with open(os.path.join("$(VENV)", "pyvenv.cfg"), "w") as config:
    config.write("home = %s\ninclude-system-site-packages = false\n" % os.path.dirname(python))
endef
export PLAIN_VENV

$(READY): requirements.lock pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo '$(PYTHON) is missing.  On Debian: apt install python3' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is $$("$(PYTHON)" -V).  Another one: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -m pip --python "$$(command -v "$(PYTHON)")" --version >/dev/null 2>&1 || \
	  { echo 'pip 22.3 or newer is missing for $(PYTHON).  On Debian: apt install python3-pip' >&2; exit 1; }
	@$(RUN) -c '' 2>/dev/null || { echo 'Setting up $(VENV), once' && rm -rf $(VENV) && \
	  if "$(PYTHON)" -m venv --help >/dev/null 2>&1; then "$(PYTHON)" -m venv --without-pip $(VENV); \
	  else "$(PYTHON)" -c "$$PLAIN_VENV"; fi; }
	@$(PIP) install -qq --require-hashes -r requirements.lock
	@$(PIP) install -qq --no-deps --no-build-isolation -e .
	@touch $@

$(TEST_READY): $(READY) requirements-test.lock
	@$(PIP) install -qq --require-hashes -r requirements-test.lock
	@touch $@
