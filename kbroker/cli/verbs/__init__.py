"""The verbs of ``kbroker``, one module each; ``kbroker.cli.command`` lists them."""
