"""How many examples property tests draw: the same ones each time; `--hypothesis-profile=thorough` draws others."""

import hypothesis

# How long an example takes says how busy the machine is; what must be fast has tests that count.
hypothesis.settings.register_profile("kubecel", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("kubecel")
