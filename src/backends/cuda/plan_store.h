// Algorithms of cuBLASLt chosen by measurement, kept in a file: one per distinct matmul on one card with one version of
// the library. Results follow from the file, never from the clock of the run that reads it: the same file gives the
// same bytes. Without a file the library's first proposal is taken.
#pragma once

#include <cublasLt.h>

#include <map>
#include <string>

namespace h3::cuda {

class PlanStore {
 public:
  // Entries of another card or library are kept in the file and not used. A file that cannot be read counts as empty;
  // Error(data) when it is something else than a store, so that it is not overwritten.
  PlanStore(std::string path, std::string machine);

  const cublasLtMatmulAlgo_t* find(const std::string& shape) const;  // nullptr = not measured
  // microseconds: of the chosen one and of the library's first proposal. Writes the file.
  void add(const std::string& shape, const cublasLtMatmulAlgo_t& algorithm, double microseconds, double first);

 private:
  struct Entry {
    cublasLtMatmulAlgo_t algorithm{};
    double microseconds = 0, first = 0;
  };
  void write() const;

  std::string path_, machine_;
  std::map<std::string, std::map<std::string, Entry>> machines_;  // by machine, then by shape
};

}  // namespace h3::cuda
