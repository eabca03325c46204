#!/bin/sh
# Build the image from what lies in bin/, with whichever builder is there: image.sh IMAGE GOARCH
set -eu
image=$1 arch=$2
for builder in docker podman buildah; do
	command -v "$builder" >/dev/null 2>&1 || continue
	case $builder in
	docker) docker info >/dev/null 2>&1 || continue
		exec docker build --platform "linux/$arch" --build-arg TARGETARCH="$arch" -t "$image" . ;;
	podman) exec podman build --platform "linux/$arch" --build-arg TARGETARCH="$arch" -t "$image" . ;;
	buildah) exec buildah build --platform "linux/$arch" --build-arg TARGETARCH="$arch" -t "$image" . ;;
	esac
done
echo "image.sh: none of docker (with its engine running), podman and buildah is here: install one of them" >&2
exit 1
