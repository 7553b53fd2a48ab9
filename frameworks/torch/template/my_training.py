"""A training loop: replace its lines by those of your own."""

import torch


class Loop:
    def setup(self, network, recipe):
        self.network, self.recipe = network, recipe
        self.optimizer = recipe.optimizer(network.parameters())
        self.scaler = torch.amp.GradScaler(recipe.device, **recipe.scaling)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, recipe.schedule) if recipe.schedule else None

    def micro_batch(self, inputs, targets, items):
        self.network.train()
        with torch.autocast(self.recipe.device, **self.recipe.autocast):
            losses = self.network(inputs, targets)
        self.scaler.scale(losses.sum() / items).backward()

    def step(self):
        scale, norm = self.scaler.get_scale(), None
        if self.recipe.clip is not None:
            self.scaler.unscale_(self.optimizer)
            norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scheduler and self.scaler.get_scale() >= scale:
            self.scheduler.step()
        self.optimizer.zero_grad()
        return norm

    def predict(self, inputs):
        self.network.eval()
        with torch.no_grad(), torch.autocast(self.recipe.device, **self.recipe.autocast):
            return self.network(inputs)

    def state(self):
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load(self, state):
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self):
        parts = {"network": self.network, "optimizer": self.optimizer, "scaler": self.scaler}
        return parts | ({"scheduler": self.scheduler} if self.scheduler else {})
