"""What becomes of a trained model: Hugging Face loads our folder as it stands, we load theirs, and both speak alike."""
import json

from support import InteropTest

GPT = dict(vocabulary=97, context=32, layers=2, heads=4, embedding=64)
PROMPT = [5, 17, 96, 0, 41]
TOKENS = 24


class TrainerApply(InteropTest):
    def greedy(self, model):
        import torch
        prompt = torch.tensor([PROMPT])  # it has a 0, which without a mask would be taken for padding
        out = model.eval().generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=TOKENS,
                                    do_sample=False, pad_token_id=0, eos_token_id=None)
        return out[0, len(PROMPT):].tolist()

    def ours(self, weights):
        run = self.run_program("trainer", "generate", "--weights", weights, "--prompt-ids", ",".join(map(str, PROMPT)),
                               "--tokens", str(TOKENS))
        self.assertEqual(run.code, 0, run)
        return [int(word) for word in run.out.strip().split(",")]

    def hugging_face_model(self):
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        torch.manual_seed(11)
        model = GPT2LMHeadModel(GPT2Config(
            vocab_size=GPT["vocabulary"], n_positions=GPT["context"], n_embd=GPT["embedding"], n_layer=GPT["layers"],
            n_head=GPT["heads"], bos_token_id=0, eos_token_id=0))
        with torch.no_grad():
            for parameter in model.parameters():  # fresh weights say one token for ever
                parameter.mul_(4)
        return model

    def test_generate_gives_hugging_faces_greedy_tokens(self):
        model = self.hugging_face_model()
        model.save_pretrained(self.dir / "theirs")
        theirs = self.greedy(model)
        self.assertGreater(len(set(theirs)), 2, theirs)
        self.assertEqual(self.ours(self.dir / "theirs"), theirs)

    def test_from_pretrained_takes_our_checkpoint(self):
        import numpy as np
        from transformers import AutoModelForCausalLM
        rng = np.random.default_rng(3)
        (self.dir / "tokens.bin").write_bytes(rng.integers(0, 97, 3000, dtype=np.uint16).tobytes())
        sizes = ", ".join(f"{k}: {v}" for k, v in GPT.items())
        config = self.write("config.yaml", "\n".join([
            f"model: {{name: gpt2, {sizes}}}",
            f"data: {{format: tokens, train: {self.dir}/tokens.bin, sequence_length: 32, batch_size: 8}}",
            "optimizer: {name: adamw, lr: 0.01}",
            "train: {epochs: 2, seed: 5}",
            f"checkpoint: {{dir: {self.dir}/ck}}",
            f"log: {{file: {self.dir}/train.log}}"]))
        run = self.run_program("trainer", "--config", config)
        self.assertEqual(run.code, 0, run)
        folder = self.dir / "ck" / "latest"
        model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        self.assertFalse(report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"], report)
        self.assertEqual(json.loads((folder / "config.json").read_text())["n_head"], GPT["heads"])
        self.assertEqual(self.ours(folder), self.greedy(model))
