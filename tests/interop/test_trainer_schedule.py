"""The learning rate of each step beside torch.optim.lr_scheduler's, to the round-off of double."""
import json
import warnings

from support import InteropTest

STEPS, WARM_UP, LR = 24, 5, 0.3


class TrainerSchedule(InteropTest):
    def ours(self, schedule):
        path = self.write("config.yaml", "\n".join([
            "model: {name: linear}",
            f"data: {{format: csv, train: {self.dir}/data.csv, batch_size: 1, num_workers: 0}}",
            "loss: mse",
            f"optimizer: {{name: sgd, lr: {LR}}}",
            f"schedule: {{{schedule}}}",
            f"train: {{epochs: 1, max_steps: {STEPS}}}",
            f"log: {{file: {self.dir}/train.log}}",
            f"output: {{metrics: {self.dir}/metrics.jsonl}}",
        ]))
        (self.dir / "data.csv").write_text("0,0,0\n" * STEPS)
        run = self.run_program("trainer", "--config", path)
        self.assertEqual(run.code, 0, run)
        return [json.loads(line)["lr"] for line in (self.dir / "metrics.jsonl").read_text().splitlines()]

    def torchs(self, make, warm_up):
        import torch
        from torch.optim import lr_scheduler as s
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
        schedule = make(s, optimizer)
        if warm_up:
            schedule = s.SequentialLR(
                optimizer, [s.LinearLR(optimizer, start_factor=0.1, total_iters=WARM_UP), schedule], [WARM_UP])
        rates = []
        for _ in range(STEPS):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # SequentialLR calls step() in a way of which torch itself warns
                schedule.step()
        return rates

    def test_one_cycle(self):
        cases = {"": {}, ", pct_start: 0.4, div_factor: 10, final_div_factor: 100":
                 {"pct_start": 0.4, "div_factor": 10, "final_div_factor": 100}}
        for keys, arguments in cases.items():
            with self.subTest(keys):
                ours = self.ours("name: one_cycle" + keys)
                theirs = self.torchs(lambda s, o: s.OneCycleLR(o, LR, STEPS, cycle_momentum=False, **arguments), 0)
                for step, (a, b) in enumerate(zip(ours, theirs)):
                    self.assertAlmostEqual(a, b, delta=1e-14, msg=f"step {step}")

    def test_each_schedule_with_and_without_warm_up(self):
        for warm_up in (0, WARM_UP):
            span = STEPS - warm_up  # of the schedule proper, by default
            cases = {
                "name: constant": lambda s, o: s.ConstantLR(o, factor=1),
                "name: cosine, min_lr: 0.01": lambda s, o: s.CosineAnnealingLR(o, span, eta_min=0.01),
                "name: linear, min_lr: 0.03": lambda s, o: s.LinearLR(o, 1, 0.1, span),
                "name: step, step_size: 4, gamma: 0.7": lambda s, o: s.StepLR(o, 4, 0.7),
                "name: multi_step, milestones: [2, 9, 11], gamma: 0.5": lambda s, o: s.MultiStepLR(o, [2, 9, 11], 0.5),
            }
            for schedule, make in cases.items():
                with self.subTest(schedule, warm_up=warm_up):
                    ours = self.ours(f"{schedule}, warmup_steps: {warm_up}, warmup_factor: 0.1")
                    theirs = self.torchs(make, warm_up)
                    self.assertEqual(len(ours), STEPS)
                    for step, (a, b) in enumerate(zip(ours, theirs)):
                        self.assertAlmostEqual(a, b, delta=1e-14, msg=f"step {step}")
