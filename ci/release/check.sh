#!/bin/sh
# Build the release twice, the second time in another folder and with an empty build cache, and compare every byte.
set -eu
cd "$(dirname "$0")/../.."
version=${VERSION:-$(sed -n 's/^version: //p' charts/etcd-snapshot/Chart.yaml)}
other=$(mktemp -d)
trap 'chmod -R u+w "$other"; rm -rf "$other"' EXIT
make release VERSION="$version"
git clone -q . "$other/clone"
[ -z "$(git status --porcelain)" ] || echo "release-check: uncommitted changes are in the first build only" >&2
(cd "$other/clone" && GOCACHE="$other/cache" make release VERSION="$version")
if ! diff dist/checksums.txt "$other/clone/dist/checksums.txt"; then
	echo "release-check: two builds of one commit differ in the files above" >&2
	exit 1
fi
echo "release-check: both builds gave the same bytes:"
cat dist/checksums.txt
