"""One file per training framework or shared settings block: its configuration read into a Job."""
