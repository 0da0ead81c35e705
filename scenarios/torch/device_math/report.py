"""Divide by a plain number on a GPU and on the CPU: are the quotients the same?

Needs torch and a GPU. The exit code is 3 if the bug is there."""

import torch

numbers = torch.arange(0, 10)
of_cpu, of_gpu = numbers / 10, (numbers.cuda() / 10).cpu()
by_tensor = (numbers.cuda() / torch.tensor(10, device="cuda")).cpu()
times_reciprocal = numbers * torch.tensor(0.1)
print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}; on the CPU and on the GPU:")
print(f"9 / 10 is {of_cpu[9]:.10f} and {of_gpu[9]:.10f}; 9 * 0.1 is {times_reciprocal[9]:.10f}")
print(f"9 / torch.tensor(10) is {of_cpu[9]:.10f} and {by_tensor[9]:.10f}")
powers = (10 ** (numbers / 10))[9], (10 ** (numbers.cuda() / 10))[9]
print(f"10 ** (9 / 10) is {powers[0]:.10f} and {powers[1]:.10f}")
has_bug = not of_gpu.equal(of_cpu)
print("WRONG: the GPU rounds twice" if has_bug else "right: the quotients are the same")
raise SystemExit(3 if has_bug else 0)
