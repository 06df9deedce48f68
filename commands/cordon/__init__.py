"""`neuron-dra cordon`, `drain` and `uncordon`: an administrator takes devices out of use, and gives them back.

`targets` and `evictions` decide, `operator` reads and writes the cluster, `render` prints.
"""
