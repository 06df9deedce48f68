"""`python -m webhook`; the installed `neuron-dra` is the same."""

from webhook.cli.main import main

if __name__ == "__main__":
    main(prog_name="neuron-dra")
