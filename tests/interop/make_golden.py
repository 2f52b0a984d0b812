"""Writes tests/testdata/engine/*.safetensors: what PyTorch makes of small models, for the fast suite.

    ~/.cache/ddprun-tests/bin/python tests/interop/make_golden.py

Each file: initial weights ("init.NAME"), one batch ("input", "target"), the gradients of the first step ("grad.NAME"),
the losses of 12 steps over that batch ("losses", f64) and the weights after them ("final.NAME"). Names are the engine's
(torchvision's, Hugging Face's). Images are NHWC. Metadata: torch's version and the recipe.
"""
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "testdata" / "engine"
STEPS = 12


class Mlp(torch.nn.Module):
    def __init__(self, *widths):
        super().__init__()
        self.count = len(widths) - 1
        for i in range(self.count):
            setattr(self, f"fc{i + 1}", torch.nn.Linear(widths[i], widths[i + 1]))

    def forward(self, x):
        for i in range(1, self.count):
            x = F.relu(getattr(self, f"fc{i}")(x))
        return getattr(self, f"fc{self.count}")(x)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(vocab_size=31, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0,
                                      embd_pdrop=0, attn_pdrop=0, attn_implementation="eager"))


def resnet18():
    from torchvision.models import resnet18 as make
    model = make(num_classes=5, norm_layer=torch.nn.BatchNorm2d)
    # The same network with 4 channels in the first stage: small enough to keep in the repository.
    width = 4

    def narrow(n):
        return n if n == 3 else n * width // 64

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Conv2d):
                setattr(module, name, torch.nn.Conv2d(narrow(child.in_channels), narrow(child.out_channels),
                                                      child.kernel_size, child.stride, child.padding, bias=False))
            elif isinstance(child, torch.nn.BatchNorm2d):
                setattr(module, name, torch.nn.BatchNorm2d(narrow(child.num_features)))
    model.fc = torch.nn.Linear(narrow(512), 5)
    return model


def run(name, model, x, y, optimizer, recipe, **loss_options):
    model.double()
    clean = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    # Weights that fp32 holds exactly: both sides begin at the same point.
    with torch.no_grad():
        for value in clean.values():
            if value.is_floating_point():
                value.copy_(value.float().double())
    file = {f"init.{k}": v.float() if v.is_floating_point() else v for k, v in clean.items()}
    file = {k: v.clone() for k, v in file.items()}
    opt = optimizer(model.parameters())
    losses = []
    for step in range(STEPS):
        out = model(x.double() if x.is_floating_point() else x)
        logits = out.logits if hasattr(out, "logits") else out
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1), **loss_options)
        opt.zero_grad()
        loss.backward()
        if step == 0:
            file.update({f"grad.{k}": p.grad.clone() for k, p in model.named_parameters()})
        losses.append(loss.item())
        opt.step()
    file.update({f"final.{k}": v.clone() for k, v in model.state_dict().items() if k != "lm_head.weight"})
    file["losses"] = torch.tensor(losses, dtype=torch.float64)
    file["input"] = (x.permute(0, 2, 3, 1) if x.dim() == 4 else x.to(torch.int32) if not x.is_floating_point() else x)
    file["target"] = y.to(torch.int32)
    file = {k: v.float() if v.dtype == torch.float64 and k != "losses" else v for k, v in file.items()}
    save_file({k: v.contiguous() for k, v in file.items()}, OUT / f"{name}.safetensors",
              {"torch": torch.__version__, "recipe": recipe})


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(11)
    x, y = torch.randn(9, 12), torch.randint(5, (9,))
    y[4] = -100
    run("mlp_sgd", Mlp(12, 16, 8, 5), x, y,
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        "sgd lr 0.1 momentum 0.9 nesterov weight_decay 0.01, label_smoothing 0.1", label_smoothing=0.1)
    run("gpt2_adamw", gpt2(), torch.randint(31, (3, 16)), torch.randint(31, (3, 16)),
        lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1), "adamw lr 0.001 weight_decay 0.1")
    run("resnet18_sgd", resnet18(), torch.randn(4, 3, 40, 40), torch.randint(5, (4,)),
        lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9), "sgd lr 0.02 momentum 0.9")
    # Same-seed initial weights of the real constructors.
    from torchvision.models import resnet18 as real
    torch.manual_seed(3)
    state = real(num_classes=10).state_dict()
    some = {k: state[k].flatten()[:40].clone() for k in ("conv1.weight", "layer2.0.downsample.0.weight",
                                                        "layer2.0.conv1.weight", "layer4.1.conv2.weight", "fc.weight",
                                                        "fc.bias")}
    torch.manual_seed(3)
    some.update({f"mlp.{k}": v.flatten()[-40:].clone() for k, v in Mlp(12, 16, 8, 5).state_dict().items()})
    # 5 x 3 numbers are drawn one by one, 21 x 3 leave a rest after groups of 16.
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(3)
    state = GPT2LMHeadModel(GPT2Config(vocab_size=21, n_positions=5, n_embd=3, n_layer=2, n_head=1)).state_dict()
    some.update({f"gpt2.{k}": v.clone() for k, v in state.items() if k != "lm_head.weight"})
    save_file(some, OUT / "initial_weights.safetensors", {"torch": torch.__version__, "seed": "3"})


main()
