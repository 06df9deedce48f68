"""`neuron-dra status`: checks of an installation.

`snapshot` reads the cluster once; `checks` and the other modules check the snapshot and do no I/O; `lines` prints.
"""
