# Everything a person types.  Needs Python 3.11 or newer, pip and make, and nothing else:
# the rest goes into .venv/, pinned by hash: in requirements.lock what the relay runs on, in
# requirements-test.lock that and what its tests need.  On Debian 12:
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
COVER := -m coverage run -p -m pytest -q -m 'not slow and not crash'
READY := $(VENV)/.ready
TEST_READY := $(VENV)/.ready-to-test
PIP := "$(PYTHON)" -m pip --python $(RUN) --disable-pip-version-check
TESTS := -m pytest -q -m 'not crash'
CRASHES = -m pytest -q -m crash --hypothesis-seed='$(SEED)'
TESTED := $(sort $(dir $(wildcard tests/unit/test_*.py tests/unit/*/test_*.py tests/proofs/*/test_*.py tests/simulation/test_*.py tests/system/test_*.py)))
# Of the throttle's tests one measures what killed senders still send.
ALONE := tests/unit/throttle/test_many_processes.py
# Of the peers these measure no time, and mostly wait.
PATIENT := $(patsubst %,tests/proofs/peers/test_%.py,relay_edits relay_hostile_upstream relay_without_descriptors \
    relay_unread_log upstream_in_step relay_reports relay_restarts relay_many_recipients relay_kills_exactly \
    relay_told_truly relay_operator_pause relay_find relay_top relay_sendmail relay_drain relay_notices relay_renewed_files \
    relay_cli relay_runaway relay_page relay_dovecot relay_kills_between_postfixes relay_between_postfixes)
# Nor these; they are run behind those that do, so that the streams end about together.
BEHIND := $(patsubst %,tests/proofs/peers/test_%.py,relay_clients relay_container relay_installed relay_three_accounts)
MEASURING := $(filter-out $(PATIENT) $(BEHIND),$(wildcard tests/proofs/peers/test_*.py)) $(ALONE)
# What computes, in two halves: that of the disks, and all else.
DISKS := $(patsubst %,tests/unit/%/,sender spool) tests/proofs/lab/
OTHERS := $(filter-out tests/unit/ tests/unit/throttle/ tests/proofs/peers/ $(DISKS),$(TESTED)) \
    $(filter-out $(ALONE),$(wildcard tests/unit/throttle/test_*.py tests/unit/test_*.py))
PRACTICE_PASSWORD := var/practice-password

# Where `make install` puts it; DESTDIR goes before each of them, as packagers expect.
PREFIX ?= /usr
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
PROGRAM = $(DESTDIR)$(PREFIX)/lib/relay
SHARE = $(DESTDIR)$(PREFIX)/share

.PHONY: help run demo install test check lint coverage mutants corpus crash bench fmt docs lock clean
.DELETE_ON_ERROR:

help:
	@echo 'make run     run the relay on policy.yaml (POLICY=FILE for another)'
	@echo 'make demo    watch it pace mail through an upstream that cuts off whoever is too fast'
	@echo 'make install for all users (DESTDIR=, PREFIX=/usr, PYTHON=/usr/bin/python3)'
	@echo 'make test    every test but the long crash runs'
	@echo 'make check   format, lint, types and the fast tests (make lint: without the tests)'
	@echo 'make coverage   that every branch of what must not lose mail is tested'
	@echo 'make mutants that the tests notice whatever is left out or slips (docs/MUTANTS.md)'
	@echo 'make corpus  send a folder of raw mail through a relay in every way, and compare bytes (DIR=)'
	@echo 'make crash   the long crash runs (SEED=, BUDGET= in seconds)'
	@echo 'make bench   compare with Postfix and other rate limiters here (OPTIONS=--help)'
	@echo 'make fmt     format the code          make clean   remove what these commands made'
	@echo 'make docs    make the pages of docs/ that are made of the code: verdicts, replies, states, manual'
	@echo 'make lock    pin new versions (needs uv)'

# exec: the relay takes the place of the shell, so signals and its exit status reach make unchanged.
run: $(READY) $(if $(filter policy.yaml,$(POLICY)),$(PRACTICE_PASSWORD))
	@exec $(RUN) -m relay run --policy "$(POLICY)"

demo: $(READY)
	@exec $(RUN) -m relay demo

# A virtual environment whose files do not name DESTDIR; only an edited policy is left as it is.
install:
	@umask 022; set -e; "$(PYTHON)" -m venv --without-pip --clear "$(PROGRAM)"; \
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
	  cp -R README.md CHANGELOG.md UPGRADING.md LICENSE docs deploy/prometheus deploy/grafana "$(SHARE)/doc/relay"; \
	  [ -e "$(DESTDIR)$(SYSCONFDIR)/relay/policy.yaml" ] || install -m 644 deploy/policy.yaml "$(DESTDIR)$(SYSCONFDIR)/relay"

# Four at a time, of which one measures time.  The processors are two: those that compute share them, and
# give way (nice) to those that mostly wait.
test: $(TEST_READY)
	@mkdir -p var
	@nice $(RUN) $(TESTS) $(DISKS) >var/test-disks.log 2>&1 & disks=$$!; \
	  nice $(RUN) $(TESTS) $(OTHERS) >var/test-others.log 2>&1 & others=$$!; \
	  $(RUN) $(TESTS) $(PATIENT) >var/test-patient.log 2>&1 & patient=$$!; \
	  trap 'kill $$disks $$others $$patient' INT TERM; \
	  $(RUN) $(TESTS) $(MEASURING) $(BEHIND); first=$$?; \
	  wait $$disks; second=$$?; wait $$others; third=$$?; wait $$patient; fourth=$$?; \
	  cat var/test-disks.log var/test-others.log var/test-patient.log; \
	  exit $$((first || second || third || fourth))

check: lint
	$(RUN) -m pytest -q -m 'not slow and not crash'

lint: $(TEST_READY)
	$(RUN) -m ruff format --check relay tests
	$(RUN) -m ruff check relay tests
	$(RUN) -m mypy

# Which modules: pyproject.toml.  Tests that cut and kill by the thousand add no branch, only time.
coverage: $(TEST_READY)
	@rm -rf .coverage && mkdir .coverage
	$(RUN) $(COVER) tests/unit/spool --deselect tests/unit/spool/test_crash.py \
	    --deselect tests/unit/spool/test_small_scenarios.py & spool=$$!; \
	  $(RUN) $(COVER) tests/unit/throttle tests/unit/mail/test_address.py tests/unit/mail/test_dsn.py tests/unit/mail/test_text.py tests/unit/smtp/test_reply.py tests/unit/mail/test_report*.py \
	    tests/unit/cli/test_fsck.py tests/unit/cli/test_spool_convert.py tests/unit/cli/test_audit.py tests/unit/status/test_quarantine_counts.py tests/unit/status/test_eta.py tests/unit/sender/test_limits.py \
	    --deselect tests/unit/throttle/test_never_over_at_length.py --deselect tests/unit/throttle/test_crash.py \
	    --deselect tests/unit/throttle/test_never_over.py --deselect tests/unit/throttle/test_many_processes.py; \
	  others=$$?; wait $$spool && exit $$others
	$(RUN) -m coverage combine -q
	$(RUN) -m coverage report

# One thing at a time is left out of a copy, or slips, and the tests run until one fails.
mutants: $(TEST_READY)
	$(RUN) -m tests.proofs.mutants --sample 200 --seed 1 --page docs/MUTANTS.md

# Without DIR the mail that Python's own test suite ships.
corpus: $(READY)
	@$(RUN) tests/system/corpus.py $(if $(DIR),"$(DIR)")

# The seed is printed first, so that a failure can be had again: make crash SEED=…  What computes gives way
# to what drives real relays, as in `make test`.
crash: $(TEST_READY)
	@echo 'make crash SEED=$(SEED) BUDGET=$(BUDGET)'
	@mkdir -p var
	@export RELAY_CRASH_SEED='$(SEED)' RELAY_CRASH_BUDGET='$(BUDGET)'; \
	  nice $(RUN) $(CRASHES) tests/unit/ --ignore=$(ALONE) >var/crash-units.log 2>&1 & units=$$!; \
	  trap 'kill $$units' INT TERM; \
	  $(RUN) $(CRASHES) tests/proofs/ tests/simulation/ $(ALONE); first=$$?; \
	  wait $$units; second=$$?; \
	  cat var/crash-units.log; exit $$((first || second))

# Its rivals are fetched on the first run; where that fails, they are left out, and it says so.
bench: $(TEST_READY)
	@$(RUN) -c 'import limits, pyrate_limiter' 2>/dev/null || \
	  $(PIP) install -q 'pyrate-limiter>=4,<5' 'limits>=5,<6' || true
	$(RUN) -m tests.bench $(OPTIONS)

fmt: $(TEST_READY)
	$(RUN) -m ruff format relay tests
	$(RUN) -m ruff check --fix relay tests

# These pages are made of the rules, the corpus and the tables of states; tests hold them to it.
docs: $(TEST_READY)
	$(RUN) -m relay explain-reply --table > docs/VERDICTS.md
	$(RUN) -m tests.unit.policy.corpus > docs/REPLIES.md
	$(RUN) -m tests.unit.verdicts.states_page > docs/states.md
	$(RUN) -m tests.unit.throttle.history_page > docs/history-states.md
	$(RUN) -m tests.unit.smtp.session_page > docs/session-states.md
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
	echo 'hatchling==1.27.0' | $(LOCK) --extra test -c requirements.lock -o requirements-test.lock pyproject.toml -

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
