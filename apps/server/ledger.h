// The jobs on disk: one SQLite file in WAL mode, written before a client is told anything.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/server/job.h"

struct sqlite3;

namespace h3::server {

class Ledger {
 public:
  // Opens or creates the file. Error(io | data) when it is damaged or from a newer program.
  explicit Ledger(const std::string& path);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  std::vector<Job> load() const;
  // Each returns when the change would survive a power cut. Error(io).
  void insert(const Job& job);
  void update(const Job& job);
  void erase(const std::string& id);

 private:
  void run(const char* sql) const;
  void write(const char* sql, const Job& job);

  sqlite3* db_ = nullptr;
  std::string path_;
};

}  // namespace h3::server
