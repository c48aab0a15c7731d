"""The torch room: real model classes, traced on fake tensors or run for real. Needs the extra `vramplan[probe]`."""
