#!/bin/sh
# Installs oidc-provider, an OpenID Connect provider, for the tests of logins. Prints its state and never fails.
# $1 directory
set -u
. "$(dirname "$0")/installing.sh"
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/identity" && pwd) || exit 0

install_npm_packages "identity provider" "$folder" "$pins" 150
