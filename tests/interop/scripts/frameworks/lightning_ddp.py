"""Lightning's Trainer with strategy="ddp": 2 epochs, one rank dies in the second epoch of the first attempt, the second
one goes on from last.ckpt. argv: folder."""
import os
import pathlib
import signal
import sys

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def on_train_epoch_start(self):
        if self.current_epoch == 1 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    folder = pathlib.Path(sys.argv[1])
    save = lightning.pytorch.callbacks.ModelCheckpoint(folder, save_last=True, every_n_epochs=1)
    trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), max_epochs=2, logger=False,
                                callbacks=[save], enable_progress_bar=False, enable_model_summary=False)
    last = folder / "last.ckpt"
    resumed = last.exists()
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4), ckpt_path=str(last) if resumed else None)
    if trainer.is_global_zero:
        print(f"epochs {trainer.current_epoch} world {trainer.world_size} resumed {resumed}", flush=True)


if __name__ == "__main__":
    main()
