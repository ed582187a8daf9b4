# Each target is one line of scripts/ or of a tool; `make` alone lists them.
# Works with GNU make 3.81 and newer.

PYTHON ?= python3
PORT ?= 8000
RUN = .venv/bin/python -m
export TORCH_INDEX

.PHONY: help serve site test check new shared show bench setup clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 14

serve: setup ## read and edit on 127.0.0.1, rebuilt at every save (PORT=8001)
	@$(RUN) scripts.serve --port $(PORT)

site: setup ## strict build to site/, for any static host
	@$(RUN) scripts.build

test: $(if $(TESTS),setup,check) ## everything that a pull request must pass (TESTS=… for a part)
	@OMP_NUM_THREADS=1 $(RUN) pytest -n auto --maxprocesses 4 --dist worksteal $(TESTS)

check: setup ## style of the code, form of the answers (FIX=1 repairs)
	@$(RUN) ruff check $(if $(FIX),--fix) .
	@$(RUN) ruff format $(if $(FIX),,--check) .
	@$(RUN) scripts.catalog $(if $(FIX),--fix)

new: setup ## questions without an answer; with SLUG= page, snippet and test of one
	@$(RUN) scripts.new $(SLUG)

shared: setup ## lines of code that two or more pages cite, with what each says (NAME=policy/gae)
	@$(RUN) scripts.shared $(if $(NAME),'$(NAME)')

show: setup ## figures and tables of one snippet (NAME=policy/ppo_clipping)
	@$(if $(NAME),,$(error Which? make show NAME=policy/ppo_clipping))
	@$(RUN) scripts.products --show $(NAME)

bench: setup ## how long builds take and how heavy a page is
	@$(RUN) scripts.bench

setup: ## .venv and node_modules, when missing or out of date
	@$(PYTHON) scripts/setup.py

clean: ## remove what was built, keep the set-up
	rm -rf site .cache .pytest_cache .ruff_cache
