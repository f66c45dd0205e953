#!/bin/sh
# Installs the packages of the dashboard's sources, among them the engine that examines its accessibility.
set -u
cd "$(dirname "$0")/../../ui" || exit 1
if [ -e node_modules/axe-core/axe.min.js ]; then
  echo "dashboard packages: already installed"
elif ! command -v npm >/dev/null 2>&1; then
  echo "dashboard packages: not available: npm is not installed"
elif timeout 120 npm ci --no-audit --no-fund --silent >/dev/null 2>&1; then
  echo "dashboard packages: installed"
else
  echo "dashboard packages: not available: npm ci failed"
fi
