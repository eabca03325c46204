#!/bin/sh
# Fail on known vulnerabilities that code of ours reaches. The list of them is what GOVULNDB names, such as
# https://vuln.go.dev; left out, it is the newest that the Go module proxy has: the list is kept as a Go module.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go}
# What is released is built with this Go, so its standard library is the one that is looked at.
GOTOOLCHAIN=go$(cat .go-version)
export GOTOOLCHAIN
db=${GOVULNDB:-}
if [ -z "$db" ]; then
	list=golang.org/x/vulndb
	if ! "$GO" mod download "$list@latest"; then
		echo "vulnerabilities: nothing was checked: the module proxy does not give $list; set GOVULNDB to https://vuln.go.dev or to file:// and a folder" >&2
		exit 1
	fi
	db=file://$("$GO" list -m -f '{{.Dir}}' "$list@latest")/data/osv
	echo "vulnerabilities: the list is $("$GO" list -m -f '{{.Path}} of {{.Time.Format "2006-01-02"}}' "$list@latest")"
fi
exec "$GO" tool -modfile=ci/tools/govulncheck/go.mod govulncheck -db "$db" -tags e2e ./...
