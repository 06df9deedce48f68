"""`neuron-dra convert`: converts manifests, and writes them with as few changes as possible.

Read in this order: `convert_files` -> `convert_output`; `yaml_edits` changes a YAML text in place.
"""
