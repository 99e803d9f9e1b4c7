#!/usr/bin/env bash
# run_python.sh SCRIPT ARG... - runs a test that is written in Python; exit 77 with the reason where there is no Python 3.
set -u
if ! command -v python3 >/dev/null; then
    echo "SKIP: python3 is not installed"
    exit 77
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))'; then
    echo "SKIP: python3 is older than 3.8"
    exit 77
fi
exec python3 -B "$@"
