"""The commands of `neuron-dra`, one module each; `main` has the list."""
