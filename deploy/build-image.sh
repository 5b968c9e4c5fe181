#!/usr/bin/env bash
# Builds deploy/Dockerfile with buildah where there is no registry and no daemon: deploy/build-image.sh [TAG], as root.
#
# The base is Debian with its Python, from debootstrap; it is made once and then found under its tag. EXTRAS names the
# extras to install, MIRROR the Debian mirror. Needs the packages buildah and debootstrap.
set -euo pipefail

cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
tag=${1:-localhost/darksight}
base=localhost/darksight-python:bookworm
python=${PYTHON:-python3}
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' darksight_core/rows/version.py)

die() { printf 'build-image: %s\n' "$*" >&2; exit 1; }

for tool in buildah debootstrap; do
    command -v "$tool" >/dev/null || die "$tool is missing (Debian, Ubuntu: apt-get install $tool)"
done
[[ $(id -u) -eq 0 ]] || die "debootstrap needs root"

folder=$(mktemp -d)
container=
clean_up() {
    rm -rf "$folder"
    [[ -z $container ]] || buildah rm "$container" >/dev/null
}
trap clean_up EXIT

make_base() {
    local root
    container=$(buildah from scratch)
    root=$(buildah mount "$container")
    debootstrap --variant=minbase --include=python3-venv,python-is-python3 bookworm "$root" \
        "${MIRROR:-http://deb.debian.org/debian}" >"$folder/debootstrap.log" ||
        { tail -n 20 "$folder/debootstrap.log" >&2; die "debootstrap failed"; }
    # What debootstrap copies from this machine, and what a container does not need.
    rm -rf "$root"/etc/{hostname,resolv.conf} "$root"/var/{cache/apt,lib/apt/lists,log}/* "$root"/usr/share/{doc,man,locale}/*
    buildah umount "$container" >/dev/null
    buildah commit --quiet "$container" "$base" >/dev/null
    buildah rm "$container" >/dev/null
    container=
}

# pip in the build uses the settings of this machine. They are mounted, so no layer has them.
mount_pip_settings() {
    local path
    {
        echo "[global]"
        # Variables are listed first and have priority over files.
        "$python" -m pip config list | sed -n "s/\\\\n/ /g; s/^\(global\|:env:\)\.\([a-z-]*\)='\(.*\)'\$/\2 = \3/p" |
            LC_ALL=C awk '!seen[$1]++'
    } >"$folder/pip.conf"
    mounts=(--volume "$folder/pip.conf:/etc/pip.conf:ro")
    for path in $(sed -n 's/.* = //p' "$folder/pip.conf"); do
        # The pages of a local index link to files beside it.
        if [[ $path == file://* ]]; then path=$(dirname "${path#file://}"); fi
        if [[ $path == /* && -e $path ]]; then mounts+=(--volume "$path:$path:ro"); fi
    done
}

[[ -n $(buildah images --quiet "$base" 2>/dev/null) ]] || make_base
mount_pip_settings
# The docker format has the health check.
build() {
    buildah build --isolation chroot --format docker --layers --pull-never \
        --build-arg "PYTHON=$base" --build-arg "EXTRAS=${EXTRAS:-service}" \
        --build-arg "VERSION=$version" --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
        --ignorefile deploy/Dockerfile.dockerignore --file deploy/Dockerfile "$@" .
}
# The second run finds the first stage in the cache. Mounted there too, the settings would leave empty files in the image.
build --target build "${mounts[@]}"
build --tag "$tag"
