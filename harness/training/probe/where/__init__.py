"""Where a layout parts from the reference: a module, or a stage of the step."""
