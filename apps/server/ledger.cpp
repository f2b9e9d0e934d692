#include "apps/server/ledger.h"

#include <sqlite3.h>

#include "base/error.h"

namespace h3::server {
namespace {

constexpr int kVersion = 1;

struct Statement {
  Statement(sqlite3* db, const char* sql, const std::string& path) {
    if (sqlite3_prepare_v2(db, sql, -1, &handle, nullptr) != SQLITE_OK) {
      fail(Code::io, "%s: %s", path.c_str(), sqlite3_errmsg(db));
    }
  }
  ~Statement() { sqlite3_finalize(handle); }
  void bind(int index, const std::string& text) const {
    sqlite3_bind_text(handle, index, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
  }
  std::string text(int column) const {
    const auto* const bytes = reinterpret_cast<const char*>(sqlite3_column_text(handle, column));
    return bytes == nullptr ? std::string()
                            : std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(handle, column)));
  }
  sqlite3_stmt* handle = nullptr;
};

}  // namespace

Ledger::Ledger(const std::string& path) : path_(path) {
  if (sqlite3_open_v2(path.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX,
                      nullptr) != SQLITE_OK) {
    const std::string reason = db_ != nullptr ? sqlite3_errmsg(db_) : "out of memory";
    sqlite3_close(db_);
    fail(Code::io, "cannot open %s: %s", path.c_str(), reason.c_str());
  }
  try {
    sqlite3_busy_timeout(db_, 5000);
    run("PRAGMA journal_mode=WAL");
    run("PRAGMA synchronous=FULL");  // in WAL mode this syncs the log at every commit
    const Statement version(db_, "PRAGMA user_version", path_);
    const int found = sqlite3_step(version.handle) == SQLITE_ROW ? sqlite3_column_int(version.handle, 0) : 0;
    if (found > kVersion) {
      fail(Code::data,
           "%s was written by a newer version of h3 (%d, this one knows %d), use that or another --data-dir",
           path.c_str(), found, kVersion);
    }
    run("CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, status TEXT NOT NULL, position REAL NOT NULL,"
        " idempotency_key TEXT UNIQUE, data TEXT NOT NULL) WITHOUT ROWID");
    run("PRAGMA user_version=1");
  } catch (...) {
    sqlite3_close(db_);
    throw;
  }
}

Ledger::~Ledger() { sqlite3_close(db_); }

void Ledger::run(const char* sql) const {
  char* message = nullptr;
  if (sqlite3_exec(db_, sql, nullptr, nullptr, &message) == SQLITE_OK) return;
  const std::string reason = message != nullptr ? message : sqlite3_errmsg(db_);
  sqlite3_free(message);
  fail(Code::io, "%s: %s; move the file away to start with an empty list of jobs", path_.c_str(), reason.c_str());
}

std::vector<Job> Ledger::load() const {
  const Statement all(db_, "SELECT id, status, position, idempotency_key, data FROM jobs", path_);
  std::vector<Job> jobs;
  int result = 0;
  while ((result = sqlite3_step(all.handle)) == SQLITE_ROW) {
    Job job;
    job.id = all.text(0);
    if (!parse_status(all.text(1), job.status))
      fail(Code::data, "%s: job %s has no status", path_.c_str(), job.id.c_str());
    job.position = sqlite3_column_double(all.handle, 2);
    job.idempotency_key = all.text(3);
    job.read_json(Json::parse(all.text(4), path_));
    jobs.push_back(std::move(job));
  }
  if (result != SQLITE_DONE) fail(Code::io, "%s: %s", path_.c_str(), sqlite3_errmsg(db_));
  return jobs;
}

void Ledger::write(const char* sql, const Job& job) {
  const Statement statement(db_, sql, path_);
  statement.bind(1, job.id);
  statement.bind(2, name_of(job.status));
  sqlite3_bind_double(statement.handle, 3, job.position);
  if (job.idempotency_key.empty()) {
    sqlite3_bind_null(statement.handle, 4);
  } else {
    statement.bind(4, job.idempotency_key);
  }
  statement.bind(5, job.to_json().dump());
  if (sqlite3_step(statement.handle) != SQLITE_DONE) {
    fail(Code::io, "cannot write %s: %s", path_.c_str(), sqlite3_errmsg(db_));
  }
}

void Ledger::insert(const Job& job) {
  write("INSERT INTO jobs (id, status, position, idempotency_key, data) VALUES (?1, ?2, ?3, ?4, ?5)", job);
}

void Ledger::update(const Job& job) {
  write("UPDATE jobs SET status = ?2, position = ?3, idempotency_key = ?4, data = ?5 WHERE id = ?1", job);
}

void Ledger::erase(const std::string& id) {
  const Statement statement(db_, "DELETE FROM jobs WHERE id = ?1", path_);
  statement.bind(1, id);
  if (sqlite3_step(statement.handle) != SQLITE_DONE) {
    fail(Code::io, "cannot write %s: %s", path_.c_str(), sqlite3_errmsg(db_));
  }
}

}  // namespace h3::server
