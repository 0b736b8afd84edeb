#!/bin/sh
# Make a folder with Debian 13 and its RabbitMQ 4 in it, to be named in FEDFA_RABBITMQ_ROOT.
#
#     tests/rabbitmq4-root.sh FOLDER
#
# Once: a minute or two, 0.5 GB; an existing folder is left as it is. Packages come from the mirror
# that this machine's own apt uses. Needs root, Debian or Ubuntu with Debian's keyring, debootstrap.
set -eu
root=$1
[ ! -d "$root" ] || exit 0

fail() {
    echo "$0: $1" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || fail "needs root, because a Debian root is entered with chroot; use sudo"
command -v debootstrap >/dev/null || fail "debootstrap is not installed: apt-get install debootstrap"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' |
    head -n 1)
[ -n "$mirror" ] || fail "apt on this machine uses no Debian mirror"

partial=$root.partial
rm -rf "$partial"
mkdir -p "$partial"
debootstrap --variant=minbase trixie "$partial" "$mirror"
printf '#!/bin/sh\nexit 101\n' >"$partial/usr/sbin/policy-rc.d" # packages start no service
chmod +x "$partial/usr/sbin/policy-rc.d"
chroot "$partial" apt-get update -q
chroot "$partial" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends rabbitmq-server
chroot "$partial" apt-get clean
mv "$partial" "$root"
