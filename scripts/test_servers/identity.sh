#!/bin/sh
# Installs oidc-provider, an OpenID Connect provider, for the tests of logins. Prints its state and never fails.
# $1 directory
set -u
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/identity" && pwd) || exit 0
max_seconds=150

if [ -e "$folder/.complete" ] && [ "$(cat "$folder/.complete")" = "$(cksum <"$pins/package-lock.json")" ]; then
  echo "identity provider: already installed"
elif ! command -v npm >/dev/null 2>&1; then
  echo "identity provider: not available: npm is not installed"
else
  rm -rf "$folder" && mkdir -p "$folder" && cp "$pins/package.json" "$pins/package-lock.json" "$folder"
  if (cd "$folder" && timeout "$max_seconds" npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund \
    --no-update-notifier --loglevel error >/dev/null 2>&1); then
    cksum <"$pins/package-lock.json" >"$folder/.complete"
    echo "identity provider: installed"
  else
    echo "identity provider: not available: npm could not install it"
  fi
fi
