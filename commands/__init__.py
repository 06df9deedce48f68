"""What people run: `neuron-dra` and `kubectl neuron`.

Belongs here: flags, reading of files and cluster lists, rendering.
Must not be here: rules of conversion and validation (`conversion`, `checks`), Neuron rules (`neuron`), the server.
Nothing imports this package: the service runs without it.
"""
