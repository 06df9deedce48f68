"""Static types: overloads of functions and operators, and unification of type variables."""
