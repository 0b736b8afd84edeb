#!/usr/bin/env bash
# Build the four images with buildah. `make images` runs this.
#     BASE         base image, by digest; empty: one made here from Debian packages (as root, by debootstrap)
#     REGISTRY     registry and folder of the tags (localhost)
#     TAG          their tag (the version)
#     TORCH        of the trainer: cpu or cuda (cpu)
#     BUILD_FLAGS  further flags of `buildah build`: build arguments, a pip.conf with a mirror
#     NICE         how nicely (10)
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' shared/fedfa/__init__.py)
registry=${REGISTRY:-localhost}
tag=${TAG:-$version}
base=${BASE:-}

if ! command -v buildah > /dev/null; then
    echo "images: no builder here; install buildah (Debian: apt-get install buildah runc), or build the" \
        "Dockerfiles in services/ and shared/ with docker" >&2
    exit 1
fi
if [ -n "$base" ] && [ "${base#*@sha256:}" = "$base" ]; then
    echo "images: BASE=$base: name it by digest, as in python:3.11-slim-bookworm@sha256:..." >&2
    exit 1
fi
if [ -z "$base" ]; then
    base=localhost/fedfa-base:bookworm
    if ! buildah inspect --type image "$base" > /dev/null 2>&1; then
        if ! command -v debootstrap > /dev/null; then
            echo "images: set BASE to an image with Python >= 3.11, or install debootstrap to make one" >&2
            exit 1
        fi
        root=$(mktemp -d)
        trap 'rm -rf "$root"' EXIT
        debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" > "$root.log" 2>&1 \
            || { tail -n 20 "$root.log" >&2; exit 1; }
        rm -rf "$root.log" "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}/*
        container=$(buildah from scratch)
        buildah add --quiet "$container" "$root" / > /dev/null
        buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --cmd python3 "$container"
        buildah commit --quiet --rm "$container" "$base" > /dev/null
    fi
fi

revision=$(git rev-parse HEAD 2> /dev/null || echo unknown)
for service in aggregator scheduler trainer cli; do
    file=services/$service/Dockerfile
    [ "$service" != cli ] || file=shared/Dockerfile
    # unquoted: BUILD_FLAGS is several words
    nice -n "${NICE:-10}" buildah build --isolation chroot --network host --quiet \
        --build-arg BASE="$base" --build-arg TORCH="${TORCH:-cpu}" \
        --build-arg VERSION="$version" --build-arg REVISION="$revision" \
        ${BUILD_FLAGS:-} --file "$file" --tag "$registry/fedfa-$service:$tag" . > /dev/null
    size=$(buildah images --format '{{.Size}}' "$registry/fedfa-$service:$tag")
    echo "$registry/fedfa-$service:$tag $size"
done
