#!/bin/sh
# Checks the types of the dashboard's sources, and that the built files in the package match them. Needs Node and npm,
# which users do not need; without them the check is skipped.
set -eu
cd "$(dirname "$0")/../ui"
if ! command -v node >/dev/null 2>&1 || ! command -v npm >/dev/null 2>&1; then
  echo "the dashboard's built files were not compared with their sources: Node or npm is not installed"
  exit 0
fi
if [ ! -x node_modules/.bin/esbuild ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
  if ! npm ci --no-audit --no-fund --silent >/dev/null 2>&1; then
    echo "the dashboard's built files were not compared with their sources: npm ci failed"
    exit 0
  fi
fi
npm run --silent check
