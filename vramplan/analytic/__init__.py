"""The analytic source: a step played on a shape-only tape."""
