#!/bin/sh
# Copies the images, the chart and their signatures from the folder of a release to a registry. Digests stay.
#
#   ./push.sh registry.example.com/neuron [further options of `skopeo copy`, such as --dest-tls-verify=false]
#
# Then the images are <registry>/neuron-dra and <registry>/neuron-dra-kubelet-plugin, and the chart is
# oci://<registry>/charts/neuron-dra. Log in with `skopeo login` first. No other network is used.
set -eu
[ $# -ge 1 ] || { echo "$0: give the registry, and a path in it if you want one: $0 registry.example.com/neuron" >&2; exit 2; }
command -v skopeo >/dev/null || { echo "$0: skopeo is not on the PATH: install it" >&2; exit 2; }
registry=${1%/}
shift
here=$(dirname "$0")
for kind in oci signatures; do
    [ -d "$here/$kind" ] || continue
    find "$here/$kind" -name oci-layout | sort | while read -r layout; do
        folder=${layout%/oci-layout}
        repository=${folder#"$here/$kind/"}
        # `read` skips a last line without its end.
        { cat "$folder/index.json"; echo; } | sed 's/"org.opencontainers.image.ref.name": *"/\n&/g' \
          | sed -n 's/^"org.opencontainers.image.ref.name": *"\([^"]*\)".*/\1/p' | while read -r tag; do
            skopeo copy --quiet --all --preserve-digests "$@" "oci:$folder:$tag" "docker://$registry/$repository:$tag" </dev/null
            echo "$registry/$repository:$tag"
        done
    done
done
