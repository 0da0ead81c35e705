"""What several bugs share: small models to train, and oracles that judge the training.

An oracle has two sides in one module: what a rank records, and how grading judges these records.
Grading runs without torch, so only functions that ranks call import torch.
"""
