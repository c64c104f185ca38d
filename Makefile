# Commands for working on psrun. .ci/run has everything that must pass before a change lands.
.PHONY: install check test messages

install:  ## psrun, editable, with all that .ci/run needs, in .venv
	python3 -m venv .venv
	.venv/bin/pip install -q -e '.[ci]'

check:  ## style, types and the documentation
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/mkdocs build --strict -q

test:  ## the default tiers, two tests at a time
	.venv/bin/pytest -n 2

messages:  ## writes the golden files of message texts anew; review the diff
	.venv/bin/pytest tests/contract -n 0 --snapshot-update
