#!/bin/sh
# Removes from an image's virtual environment what its program does not import.
#
#   deploy/slim-venv.sh FOLDER webhook|kubelet-plugin
#
# tests/deploy/test_images.py runs both programs from what remains.
set -eu
venv=$1
program=$2
site=$(echo "$venv"/lib/python3*/site-packages)

# Generated classes, one for each kind and group of the API: 123 of the client's 126 MiB. The client imports them by
# name, when they are used. runtime/api_transport.py uses its transport and its configuration only.
for part in client aio/client; do
    find "$site/kubernetes/$part/api" "$site/kubernetes/$part/models" -mindepth 1 ! -name __init__.py -delete
done

# The wheel has both programs.
case $program in
    webhook)
        rm -r "$site/kubeletplugin" "$venv/bin/neuron-dra-kubelet-plugin"
        ;;
    kubelet-plugin)
        for package in webhook commands conversion checks certs; do
            rm -r "${site:?}/$package"
        done
        # Only which collections there are.
        find "$site/cluster" -mindepth 1 -maxdepth 1 ! -name __init__.py ! -name resources.py -exec rm -r {} +
        rm "$venv/bin/neuron-dra" "$venv/bin/neuron-dra-webhook" "$venv/bin/kubectl-neuron" "$venv/bin/kubectl_complete-neuron"
        ;;
    *)
        echo "$0: there is no image for $program: use webhook or kubelet-plugin" >&2
        exit 2
        ;;
esac
