"""The analytic source: a training step simulated on a shape-only tape."""
