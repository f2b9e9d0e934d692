#include "apps/cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace h3 {
namespace {

// The one piece of process state: a signal handler can reach nothing else.
std::atomic<Control*> g_running{nullptr};

void on_interrupt(int signal) {
  if (Control* const control = g_running.load()) control->request_stop();
  std::signal(signal, SIG_DFL);
}

}  // namespace

Interruptible::Interruptible(Control& control) {
  g_running.store(&control);
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
}

Interruptible::~Interruptible() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  g_running.store(nullptr);
}

}  // namespace h3
