// What /metrics shows, in Prometheus' text form.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"

namespace h3::server {

class Metrics {
 public:
  Metrics();
  ~Metrics();
  void request(const std::string& route, const std::string& method, int status, double seconds);
  void job_accepted();
  void job_refused();                            // queue full
  void job_finished(const std::string& status);  // completed, failed, cancelled
  void job_report(const Json& report);           // stage times, evaluations, watchdog findings
  void worker_restarted(const std::string& reason);
  void streams(int change);
  void state(int waiting, bool running, bool ready, int connections, int stored_jobs);
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace h3::server
