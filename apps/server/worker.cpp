// The worker's side: one job at a time, with the model kept hot between them.
#include "apps/server/worker.h"

#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <csignal>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "apps/server/body.h"
#include "apps/server/forecast.h"
#include "base/error.h"
#include "base/file_map.h"
#include "pipeline/preview.h"
#include "pipeline/session.h"

namespace h3::server {
namespace {

using Clock = std::chrono::steady_clock;

Json facts_json(const ModelFacts& facts) {
  return Json::object({{"name", facts.name},
                       {"width", facts.width},
                       {"height", facts.height},
                       {"frames", facts.frames},
                       {"evaluations", facts.evaluations},
                       {"fp8", facts.fp8},
                       {"multiplies_fp8", facts.multiplies_fp8},
                       {"eight_bit_refused", facts.eight_bit_refused},
                       {"nvfp4_refused", facts.nvfp4_refused}});
}

class Worker {
 public:
  Worker(const WorkerOptions& options, Log& log) : options_(options), log_(log), channel_(kWorkerSocket) {}

  int run() {
    try {
      Session session(session_options(), log_);
      Json ids = Json::array();
      for (const ModelId& id : session.model_ids()) {
        ids.push(Json::object({{"role", id.role}, {"id", id.id}, {"origin", id.origin}}));
      }
      channel_.send(Json::object({{"event", "ready"},
                                  {"device", session.device()},
                                  {"model", facts_json(session.facts())},
                                  {"model_ids", std::move(ids)},
                                  {"pid", static_cast<int64_t>(::getpid())}}));
      std::thread reader([this] { read_commands(); });
      reader.detach();  // ends with the process
      tell_machine(session);
      for (;;) run_job(session, next());
    } catch (const Error& error) {
      channel_.send(Json::object({{"event", "fatal"}, {"code", name_of(error.code())}, {"message", error.what()}}));
    } catch (const std::exception& error) {
      channel_.send(Json::object({{"event", "fatal"}, {"code", "memory"}, {"message", error.what()}}));
    }
    return 1;
  }

 private:
  SessionOptions session_options() const {
    SessionOptions session = options_.session;
    session.keep = true;
    return session;
  }

  // Once, before the first job: a few seconds on a machine that was never measured, then from the cache. A picture
  // brings in the encoders' kinds of work: a keyframe, or a reference where the model takes nothing else.
  void tell_machine(Session& session) {
    Request request;
    request.prompt = "a red ball bounces";
    const ModelFacts& facts = session.facts();
    if (facts.vision && facts.video_encoder) {
      const int side = std::max(kMinSide, facts.references.least_side);
      auto picture = std::make_shared<Image>();
      picture->width = picture->height = side;
      picture->rgb.resize(static_cast<size_t>(side) * static_cast<size_t>(side) * 3);
      if (facts.dit) {
        request.first_picture = std::move(picture);
      } else {
        request.references.emplace_back().picture = std::move(picture);
        request.ref_image_size = "match";
      }
    }
    try {
      const PlanMachine machine = session.machine(session.resolve(request));
      channel_.send(Json::object({{"event", "machine"}, {"machine", machine_json(machine)}}));
    } catch (const Error& error) {  // a model without some part: requests that need it are refused anyway
      log_.write(LogLevel::info, "no plans are made: %s", error.what());
    }
  }

  void read_commands() {
    while (!channel_.closed()) {
      const std::optional<Json> message = channel_.receive(3600);
      if (!message) continue;
      const std::lock_guard lock(mutex_);
      if (message->at("op").as_string() == "run") {
        commands_.push_back(*message);
        wake_.notify_one();
      } else if (control_ != nullptr && message->at("job").as_string() == job_) {
        control_->request_stop();
      }
    }
    // The server is gone, and with it everybody who waits for this job.
    ::_exit(0);
  }

  Json next() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return !commands_.empty(); });
    Json command = std::move(commands_.front());
    commands_.pop_front();
    return command;
  }

  void report(const Progress& progress) {
    const Clock::time_point now = Clock::now();
    // A hundred streams may listen: every step and every new stage, otherwise ten times a second.
    const bool stage = stage_ != progress.stage;
    if (!stage && progress.done < progress.total && now - reported_ < std::chrono::milliseconds(100)) return;
    stage_ = progress.stage;
    reported_ = now;
    channel_.send(Json::object({{"event", "progress"},
                                {"job", job_},
                                {"stage", progress.stage},
                                {"done", progress.done},
                                {"total", progress.total}}));
  }

  // Twice a second at most: a preview of every evaluation would be most of what the server sends.
  void preview(int step, const Image& picture, const std::string& file) {
    const Clock::time_point now = Clock::now();
    if (now - previewed_ < std::chrono::milliseconds(500)) return;
    previewed_ = now;
    write_preview(file, picture);
    const std::string png = read_file(file);
    ::unlink(file.c_str());
    channel_.send(Json::object({{"event", "preview"}, {"job", job_}, {"step", step + 1}, {"png", encode_base64(png)}}));
  }

  void run_job(Session& session, const Json& command) {
    Control control;
    {
      const std::lock_guard lock(mutex_);
      job_ = command.at("job").as_string();
      control_ = &control;
    }
    attempt_ = command.at("attempt").as_int();
    stage_.clear();
    control.on_progress = [this](const Progress& progress) { report(progress); };
    if (options_.hooks.on_check) control.on_check = [this] { options_.hooks.on_check(stage_, attempt_); };
    const auto failed = [&](const char* code, const std::string& message) {
      channel_.send(Json::object({{"event", "failed"}, {"job", job_}, {"code", code}, {"message", message}}));
    };
    try {
      Request request = Request::from_json(command.at("request"));
      request.output = command.at("output").as_string();
      const bool text_only = command.at("text_only").as_bool();
      FrameSink sink;
      sink.preview = [&](int step, int, const Image& picture) { preview(step, picture, request.output + ".png"); };
      const RunReport report = text_only ? session.encode(request, std::exchange(request.output, ""), control)
                                         : session.run(session.resolve(request), control, sink);
      channel_.send(Json::object({{"event", "done"}, {"job", job_}, {"report", report.to_json()}}));
    } catch (const Error& error) {
      failed(name_of(error.code()), error.what());
    } catch (const std::bad_alloc&) {
      failed("memory", "out of memory, ask for a smaller or shorter clip");
    }
    {
      const std::lock_guard lock(mutex_);
      control_ = nullptr;
    }
    // The heap keeps the freed pages of a clip. Over hundreds of jobs the process grew by them, while the bytes in use
    // stayed the same.
    ::malloc_trim(0);
  }

  const WorkerOptions& options_;
  Log& log_;
  Channel channel_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Json> commands_;
  Control* control_ = nullptr;  // of the running job
  std::string job_, stage_;
  int64_t attempt_ = 0;
  Clock::time_point reported_{}, previewed_{};
};

}  // namespace

int run_worker(const WorkerOptions& options, Log& log) {
  // The server decides when to stop; a terminal's Ctrl-C reaches both.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpriority(PRIO_PROCESS, 0, options.nice);
  return Worker(options, log).run();
}

}  // namespace h3::server
