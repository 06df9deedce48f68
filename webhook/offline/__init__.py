"""Manifests on disk: what `neuron-dra convert` and `neuron-dra validate` read, decide about and write.

Belongs here: YAML texts and their places, kinds with pod templates, conversion and validation of whole files.
Must not be here: rules of conversion and validation (they are the webhook's own), the command line.
Imported by the commands alone.

Read in this order: `manifest_files` -> `manifests` -> `convert_files` -> `convert_output`; `yaml_edits` changes a text
where it stands.
"""
