"""What `make bench` runs: everything is measured side by side in one run, and only ratios are claimed."""
