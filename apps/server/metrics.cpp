#include "apps/server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <unistd.h>

#include <fstream>

namespace h3::server {

namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;

const Histogram::BucketBoundaries kHttpSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10};
const Histogram::BucketBoundaries kJobSeconds = {1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1200, 3600, 10800};

// Second field of /proc/self/statm.
double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

struct Metrics::State {
  prometheus::Registry registry;
  prometheus::Family<Counter>& requests =
      prometheus::BuildCounter().Name("h3_http_requests_total").Help("Answered HTTP requests").Register(registry);
  prometheus::Family<Histogram>& request_seconds =
      prometheus::BuildHistogram()
          .Name("h3_http_request_seconds")
          .Help("Time from the first byte of a request to the last of its answer")
          .Register(registry);
  prometheus::Family<Counter>& jobs =
      prometheus::BuildCounter().Name("h3_jobs_total").Help("Jobs by what became of them").Register(registry);
  prometheus::Family<Histogram>& job_seconds = prometheus::BuildHistogram()
                                                   .Name("h3_job_seconds")
                                                   .Help("Time of completed jobs in the worker")
                                                   .Register(registry);
  prometheus::Family<Counter>& stage_seconds = prometheus::BuildCounter()
                                                   .Name("h3_stage_seconds_total")
                                                   .Help("Time of completed jobs by stage")
                                                   .Register(registry);
  prometheus::Family<Counter>& evaluations = prometheus::BuildCounter()
                                                 .Name("h3_evaluations_total")
                                                 .Help("Model evaluations by how they were done")
                                                 .Register(registry);
  prometheus::Family<Counter>& findings = prometheus::BuildCounter()
                                              .Name("h3_watchdog_findings_total")
                                              .Help("Clips that a check of the watchdog found wanting")
                                              .Register(registry);
  prometheus::Family<Counter>& restarts =
      prometheus::BuildCounter().Name("h3_worker_restarts_total").Help("Restarts of the worker").Register(registry);
  prometheus::Family<Gauge>& gauges =
      prometheus::BuildGauge().Name("h3_state").Help("What the server holds now").Register(registry);
  prometheus::Family<Gauge>& peaks = prometheus::BuildGauge()
                                         .Name("h3_worker_peak_bytes")
                                         .Help("Peak memory of the last completed job")
                                         .Register(registry);
  Gauge& waiting = gauges.Add({{"of", "jobs_waiting"}});
  Gauge& running = gauges.Add({{"of", "jobs_running"}});
  Gauge& stored = gauges.Add({{"of", "jobs_stored"}});
  Gauge& ready = gauges.Add({{"of", "worker_ready"}});
  Gauge& connections = gauges.Add({{"of", "connections"}});
  Gauge& streams = gauges.Add({{"of", "event_streams"}});
  Gauge& resident = gauges.Add({{"of", "resident_bytes"}});
};

Metrics::Metrics() : state_(std::make_unique<State>()) {
  for (const char* status : {"accepted", "refused", "completed", "failed", "cancelled"})
    state_->jobs.Add({{"status", status}});
}
Metrics::~Metrics() = default;

void Metrics::request(const std::string& route, const std::string& method, int status, double seconds) {
  state_->requests.Add({{"route", route}, {"method", method}, {"status", std::to_string(status)}}).Increment();
  state_->request_seconds.Add({{"route", route}}, kHttpSeconds).Observe(seconds);
}

void Metrics::job_accepted() { state_->jobs.Add({{"status", "accepted"}}).Increment(); }
void Metrics::job_refused() { state_->jobs.Add({{"status", "refused"}}).Increment(); }
void Metrics::job_finished(const std::string& status) { state_->jobs.Add({{"status", status}}).Increment(); }

void Metrics::job_report(const Json& report) {
  if (const Json* const seconds = report.find("seconds")) {
    state_->job_seconds.Add({}, kJobSeconds).Observe(seconds->as_double());
  }
  if (const Json* const stages = report.find("stages")) {
    for (const Json& stage : stages->items()) {
      state_->stage_seconds.Add({{"stage", stage.at("stage").as_string()}}).Increment(stage.at("seconds").as_double());
    }
  }
  if (const Json* const evaluations = report.find("evaluations")) {
    for (const auto& [kind, count] : evaluations->members()) {
      state_->evaluations.Add({{"kind", kind}}).Increment(count.as_double());
    }
  }
  if (const Json* const verdicts = report.find("watchdog")) {
    for (const Json& verdict : verdicts->items()) {
      if (!verdict.at("ok").as_bool()) state_->findings.Add({{"check", verdict.at("check").as_string()}}).Increment();
    }
  }
  const auto peak = [&](const char* key, const char* memory) {
    if (const Json* const bytes = report.find(key)) state_->peaks.Add({{"memory", memory}}).Set(bytes->as_double());
  };
  peak("peak_ram_bytes", "host");
  peak("peak_device_bytes", "device");
}

void Metrics::worker_restarted(const std::string& reason) { state_->restarts.Add({{"reason", reason}}).Increment(); }
void Metrics::streams(int change) { state_->streams.Increment(change); }

void Metrics::state(int waiting, bool running, bool ready, int connections, int stored_jobs) {
  state_->waiting.Set(waiting);
  state_->running.Set(running ? 1 : 0);
  state_->ready.Set(ready ? 1 : 0);
  state_->connections.Set(connections);
  state_->stored.Set(stored_jobs);
  state_->resident.Set(resident_bytes());
}

std::string Metrics::text() const { return prometheus::TextSerializer().Serialize(state_->registry.Collect()); }

}  // namespace h3::server
