#!/bin/sh
# Builds the wheel and runs the demo from it in a fresh environment, outside the checkout:
# what people install must work without what a checkout has.
set -eu
python=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT INT TERM
"$python" -m hatchling build -t wheel -d "$folder/dist" >/dev/null
constraints=$PWD/constraints.txt
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --disable-pip-version-check --quiet install -c "$constraints" "$folder"/dist/*.whl
cd "$folder"
./venv/bin/toolfold demo --json >demo.json
./venv/bin/python - <<'CHECK'
import json, pathlib, toolfold
shown = json.loads(pathlib.Path("demo.json").read_text())
assert ".venv" not in toolfold.__file__ and "src" not in pathlib.Path(toolfold.__file__).parts, toolfold.__file__
assert all(row["tokens_sent"] < row["tokens_all"] / 2 for row in shown), shown
print(f"the wheel works outside the checkout: {len(shown)} messages shown")
CHECK
