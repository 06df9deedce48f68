"""The kinds of policy files, and the documents that hold them."""
