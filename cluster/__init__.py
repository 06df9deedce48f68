"""What is in a cluster: one typed store of API objects, filled by watches, lists or files."""
