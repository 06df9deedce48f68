"""Manifests on disk: reading, conversion, validation and output for `neuron-dra convert` and `neuron-dra validate`.

Not here: rules of conversion and validation (they are the webhook's), the command line. Only commands import this.

Read in this order: `manifest_files` -> `manifests` -> `convert_files` -> `convert_output`; `yaml_edits` changes a YAML
text in place.
"""
