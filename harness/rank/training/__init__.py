"""What is known of a training, for probe and guard: its parameters, and the layouts that split
them. Each private attribute of torch, DeepSpeed and Megatron stands in one file here."""
