"""From text to the syntax tree, macros resolved."""
