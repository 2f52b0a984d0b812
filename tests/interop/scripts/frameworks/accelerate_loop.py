"""accelerate: prepare, accumulate, gather, save_state and load_state. argv: folder."""
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=4, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for x, y in data:
        with accelerator.accumulate(model):
            accelerator.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state(sys.argv[1])
    accelerator.wait_for_everyone()
    accelerator.load_state(sys.argv[1])
    seen = accelerator.gather_for_metrics(torch.tensor([accelerator.process_index]))
    accelerator.print(f"gathered {sorted(seen.tolist())} {accelerator.distributed_type}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
