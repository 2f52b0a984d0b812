#pragma once

#include "launcher/agent/services.h"

namespace ddprun::launcher {

// Adapts the rendezvous library to Services. Only the program ddprun compiles this: it is the one place where
// launcher/ meets rendezvous/.
Services make_embedded_services();

}  // namespace ddprun::launcher
