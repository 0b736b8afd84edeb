#!/bin/sh
# The build stage of the images: puts into /opt/fedfa what one of them runs, without pip.
#     k8s/install.sh torch     TORCH: cpu (from the index TORCH_CPU_INDEX) or cuda
#     k8s/install.sh EXTRA     aggregator, scheduler, trainer or cli
# TORCH_VERSION and TORCHVISION_VERSION replace the versions in constraints.txt. Who merges gets the
# compiled kernel: its compiler comes from Debian and stays in the build stage.
set -eu

install() {
    /opt/build/bin/pip --python /opt/fedfa/bin/python install --no-cache-dir --constraint constraints.txt "$@"
}

[ -d /opt/build ] || python3 -m venv /opt/build
[ -d /opt/fedfa ] || python3 -m venv --without-pip /opt/fedfa
[ -z "${TORCH_VERSION:-}" ] || sed -i "s/^torch==.*/torch==$TORCH_VERSION/" constraints.txt
[ -z "${TORCHVISION_VERSION:-}" ] || sed -i "s/^torchvision==.*/torchvision==$TORCHVISION_VERSION/" constraints.txt

case $1 in
torch)
    case $TORCH in
    cpu) install --extra-index-url "$TORCH_CPU_INDEX" torch torchvision ;;
    cuda) install torch torchvision ;;
    *) echo "TORCH: cpu or cuda, not $TORCH" >&2 && exit 1 ;;
    esac
    ;;
aggregator | cli)
    apt-get update -q
    apt-get install -q -y --no-install-recommends gcc libc6-dev
    install ".[$1]"
    /opt/fedfa/bin/python -c 'from fedfa.kernel import kernel; assert kernel.name == "compiled", kernel.name'
    ;;
trainer)
    install ".[trainer]"
    if ! /opt/fedfa/bin/python -c 'import torchvision' 2> /dev/null; then
        echo "torchvision does not belong to this torch, and is removed: transformers would import it too" >&2
        /opt/build/bin/pip --python /opt/fedfa/bin/python uninstall --yes torchvision
    fi
    ;;
*) install ".[$1]" ;;
esac
