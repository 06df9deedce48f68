"""`neuron-dra cordon`, `drain` and `uncordon`: an administrator takes devices out of use, and gives them back.

`targets` decides, `operator` reads and writes the cluster, `render` prints.
"""
