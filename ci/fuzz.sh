#!/bin/sh
# Run every fuzz target of the repository, one after the other, for FUZZTIME each: what Go does itself only for one target.
# A target that finds something writes it under testdata/fuzz beside it: commit that with the fix. FUZZ picks targets by a
# regular expression, PACKAGES where to look.
set -eu
cd "$(dirname "$0")/.."
fuzztime=${FUZZTIME:-30s} wanted=${FUZZ:-.} failed='' ran=0
list=$(mktemp)
trap 'rm -f "$list"' EXIT
# Compiled, not grepped: a target that a build tag hides is none. `go test -list` prints a package's targets before its name.
go test -list '^Fuzz' ${PACKAGES:-./...} >"$list"
pending=
while read -r word package _; do
	case $word in
	Fuzz*) pending="$pending $word" ;;
	ok)
		for target in $pending; do
			echo "$target" | grep -Eq "$wanted" || continue
			echo "== $package $target"
			ran=$((ran + 1))
			go test "$package" -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" -parallel "${FUZZWORKERS:-1}" </dev/null || failed="$failed $target"
		done
		pending=
		;;
	esac
done <"$list"
[ "$ran" -gt 0 ] || { echo "fuzz.sh: no target is called '$wanted'" >&2; exit 1; }
[ -z "$failed" ] || { echo "fuzz.sh: failed:$failed" >&2; exit 1; }
echo "fuzz.sh: $ran targets, $fuzztime each, found nothing"
