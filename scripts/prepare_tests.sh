#!/bin/sh
# Installs what `make test-all`, `make test-clients` and CI use: system packages, and tools below the virtual environment, which
# are large except for those of `make test`. Prints the state of each and never fails; tests that miss a program are skipped
# with the reason. $1 directory for the tools
set -u
cd "$(dirname "$0")/.." || exit 1
tools=$1

sh scripts/test_servers/mcp.sh "$tools/mcp" &
sh scripts/test_servers/small.sh "$tools" &
sh scripts/test_servers/local_model.sh "$tools" &
sh scripts/test_servers/frameworks.sh "$tools/frameworks" &
sh scripts/test_servers/homeassistant.sh "$tools/homeassistant" &
sh scripts/test_servers/sdk_tests.sh "$tools/sdk_tests" &
sh scripts/test_servers/linters.sh "$tools/linters" &
sh scripts/test_servers/ui.sh & # the engine that examines the dashboard's accessibility
sh scripts/system_packages.sh
echo "apptainer: $(timeout 90 sh scripts/test_servers/apptainer.sh "$tools/apptainer" || echo 'not available: timed out')"
wait
exit 0
