"""The commands of `neuron-dra`; `main` knows them by name, each module is one."""
