"""Groups of the help pages: of options on a command's page, of commands on the first."""

MODEL, BATCH, METHOD, DATA = "Model and GPU", "Batch", "Method and LoRA", "Data: lengths, images, videos"
PRECISION, SAVERS, SEVERAL = "Precision and optimizer", "Memory savers", "Several GPUs"
RUN, REAL, OUTPUT, AFTER = "Run and learning rate", "Real runs", "Output", "After training"
CLUSTER = "Other machines"
PANELS = (MODEL, BATCH, METHOD, DATA, PRECISION, SAVERS, SEVERAL, RUN, AFTER, REAL, CLUSTER, OUTPUT)
"""Groups of options, in the order of the help page."""
PLAN, COMPARE, MEASURE, LISTS = "Plan a run", "Compare and publish", "Measure on a GPU", "List what is known"
TASKS = (PLAN, COMPARE, MEASURE, LISTS)
"""Groups of commands."""
