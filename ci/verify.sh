#!/bin/sh
# Fail when what is generated differs from what is committed, or a module is untidy.
set -eu
cd "$(dirname "$0")/.."
before=$(mktemp) after=$(mktemp)
trap 'rm -f "$before" "$after"' EXIT
state() { git ls-files -z --cached --others --exclude-standard | xargs -0 sha256sum 2>/dev/null | sort -k2; }
state >"$before"
make --no-print-directory generate
go mod tidy
for mod in ci/tools ci/tools/lint ci/tools/actionlint ci/tools/syft ci/tools/govulncheck ci/tools/licences; do (cd "$mod" && go mod tidy); done
go mod verify >/dev/null
state >"$after"
if ! diff -u "$before" "$after" >&2; then
	echo "verify: the files above differ from what the tools write: run 'make generate' and 'go mod tidy', and commit the result" >&2
	exit 1
fi
echo "verify: generated files and modules are up to date"
