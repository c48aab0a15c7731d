"""Real training steps on a GPU: probes, the ledger of measured runs, and the accuracy of estimates against them."""
