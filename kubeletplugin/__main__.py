"""`python -m kubeletplugin` is `neuron-dra-kubelet-plugin`."""

from kubeletplugin.cli import main

if __name__ == "__main__":
    main()
