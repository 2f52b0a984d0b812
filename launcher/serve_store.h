#pragma once

namespace ddprun::launcher {

// ddprun by the name `ddprun-store LISTENER LIFE`, both descriptors that were inherited: serves a c10d store to a world
// that no launcher started, until LIFE reads as ended, which is when the trainer that started us has. Signals that end
// a job are the trainer's concern: it saves its state with the others, through this store. Returns the exit code.
int serve_store(int argc, char** argv);

}  // namespace ddprun::launcher
