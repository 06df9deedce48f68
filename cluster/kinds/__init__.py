"""One module for each kind: what is kept of an object, and what the kept objects say together. No I/O."""
