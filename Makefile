# Commands for working on psrun. .ci/run has everything that must pass before a change lands.
.PHONY: install check test messages coverage candidates release-check

install:  ## psrun, editable, with all that .ci/run needs, in .venv
	python3 -m venv .venv
	.venv/bin/pip install -q -e '.[ci]'

check:  ## style, types and the documentation
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports
	.venv/bin/mypy
	.venv/bin/mkdocs build --strict -q

test:  ## the default tiers, two tests at a time
	.venv/bin/pytest -n 2

messages:  ## writes the golden files of message texts anew; review the diff
	.venv/bin/pytest tests/*/contract -n 0 --snapshot-update

coverage:  ## the share of lines of psrun that the unit tests run
	.venv/bin/coverage run --source psrun -m pytest tests/*/unit
	.venv/bin/coverage report --skip-covered --sort=cover

candidates:  ## the default tiers on release candidates of libraries, in .venv-candidates; lists what fails
	rm -rf .venv-candidates
	python3 -m venv .venv-candidates
	.venv-candidates/bin/pip install -q -e '.[test,optuna]'
	# They are installed over the bounds of psrun and of tf-keras: pip names each bound that is broken, and goes on.
	.venv-candidates/bin/pip install -q --upgrade --pre tensorflow hydra-core optuna pyarrow
	# Candidates of TensorFlow bring keras-nightly, whose files lie in the folder of keras.
	.venv-candidates/bin/pip uninstall -q -y keras-nightly
	.venv-candidates/bin/pip install -q --force-reinstall --no-deps --pre keras
	.venv-candidates/bin/pip freeze | grep -E '^(tensorflow|tf[-_]keras|keras|hydra|omegaconf|optuna|pyarrow|numpy)'
	.venv-candidates/bin/pytest -n 2

release-check:  ## before a release, beside .ci/run: the newest version of every extra, what repeats a test, mutants, a soak
	.venv/bin/pip install -q --upgrade --upgrade-strategy eager -e '.[ci]'
	.venv/bin/pytest -n 2
	.venv/bin/pytest -n 2 -m release
	.venv/bin/python tests/mutants.py
	.venv/bin/python benchmarks/soak.py
	$(MAKE) candidates
