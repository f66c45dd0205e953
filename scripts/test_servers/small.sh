#!/bin/sh
# Installs the small tools that `make test` uses below the virtual environment, nothing else: PostgreSQL, and the npm packages of
# aimock, which speaks the interfaces of model providers, and of oidc-provider, an OpenID Connect provider. Prints the state of
# each and never fails. $1 directory
set -u
. "$(dirname "$0")/installing.sh"
folder=$(realpath -m "$1")
here=$(cd "$(dirname "$0")" && pwd) || exit 0
max_seconds=150

sh "$here/postgres.sh" "$folder/postgres" &
install_npm_packages aimock "$folder/aimock" "$here/aimock" "$max_seconds" &
install_npm_packages "identity provider" "$folder/identity" "$here/identity" "$max_seconds" &
wait
exit 0
