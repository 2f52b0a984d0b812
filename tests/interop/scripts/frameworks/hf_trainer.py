"""transformers' Trainer on a tiny GPT-2: 8 steps, checkpoints at 4, one rank dies at 6 in the first attempt, the second
one goes on from the checkpoint. argv: folder."""
import os
import signal
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Tokens(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = torch.randint(0, 64, (64, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Die(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 6:
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    folder = sys.argv[1]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    arguments = TrainingArguments(folder, use_cpu=True, ddp_backend="gloo", max_steps=8, save_steps=4, report_to=[],
                                  per_device_train_batch_size=4, dataloader_num_workers=1, disable_tqdm=True)
    dies = os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    trainer = Trainer(model, arguments, train_dataset=Tokens(), callbacks=[Die()] if dies else None)
    last = get_last_checkpoint(folder) if os.path.isdir(folder) else None
    trainer.train(resume_from_checkpoint=last)
    if trainer.is_world_process_zero():
        print(f"step {trainer.state.global_step} world {arguments.world_size} from {os.path.basename(last or 'nothing')}", flush=True)


if __name__ == "__main__":
    main()
