"""Converts pods: a pod to what it asks for, to a claim, to a patch. Pure: no HTTP, no cluster, no clock.

Read in this order: `decide` (one object to its decision) -> `objects` (where objects have pods, and what pods say) ->
`asks` (what the containers of a pod ask for, and the settings) -> `claims` (the claim for that) -> `patches` (the
change of the object), with `findings` about pods and the claims that they name.
"""
