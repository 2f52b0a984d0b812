#pragma once

#include <string_view>

namespace ddprun::rendezvous {

// Tells systemd (NOTIFY_SOCKET, Type=notify): "READY=1", "STOPPING=1", "STATUS=...". Nothing happens without it.
void sd_notify(std::string_view state);

}  // namespace ddprun::rendezvous
