"""What comes from outside: the model, the job, the GPU, images and data sets."""
