torchrun --nproc_per_node 2 -m nemo_automodel.cli.app packed.yaml --packed_sequence.packed_sequence_size 4096
