"""`neuron-dra status`: what an installation looks like from outside.

`snapshot` fetches, once; `checks` and its neighbours judge what was fetched and do nothing else; `render` shows it.
"""
