// (operation x case table x back ends of this machine) against the oracle, through the shadow decorator: element by
// element within the contract, and no byte changed outside an output. H3_TEST_SEED=N repeats a run,
// H3_TEST_SEED=random draws a new one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <set>

#include "backends/list.h"
#include "backends/ref/ref_ops.h"
#include "base/error.h"
#include "ops/shadow.h"
#include "tensor/rows.h"
#include "tests/conformance/cases.h"

namespace h3::conformance {
namespace {

struct Machine {
  explicit Machine(int threads = 2) : pool(threads) {}
  ThreadPool pool;
  Log log;
  Context context{pool, log};
};

uint64_t run_seed() {
  static const uint64_t seed = [] {
    // One seed for everybody, so that a change is judged on the numbers before it; "random" draws others.
    const std::string text = std::getenv("H3_TEST_SEED") != nullptr ? std::getenv("H3_TEST_SEED") : "20261130";
    return text == "random" ? static_cast<uint64_t>(std::random_device{}()) : std::strtoull(text.c_str(), nullptr, 10);
  }();
  return seed;
}

// Differs from case to case, and does not depend on the order of the table.
uint64_t seed_of(const Case& c) {
  uint64_t h = run_seed() ^ 0xcbf29ce484222325u;
  for (char ch : c.op + c.name) h = (h ^ static_cast<uint8_t>(ch)) * 0x100000001b3u;
  return h;
}

std::string where(const Case& c) {
  return strf("%s: %s; H3_TEST_SEED=%llu", c.op.c_str(), c.name.c_str(), static_cast<unsigned long long>(run_seed()));
}

std::vector<std::string> usable_backends() {
  Machine machine(1);
  std::vector<std::string> names;
  for (const BackendInfo& info : list_backends(machine.context)) {
    if (info.refused.empty()) names.push_back(info.name);
  }
  return names;
}

std::vector<std::string> operations() {
  std::vector<std::string> names;
  for (const Case& c : all_cases()) {
    if (names.empty() || std::find(names.begin(), names.end(), c.op) == names.end()) names.push_back(c.op);
  }
  return names;
}

// The bytes of the outputs after running a case on a back end.
std::vector<std::byte> run_bytes(const std::string& backend, const Case& c, int threads) {
  Machine machine(threads);
  const std::unique_ptr<Ops> ops = make_backend(backend, machine.context);
  Env env(*ops, seed_of(c));
  c.prepare(env)();
  ops->sync();
  std::vector<std::byte> bytes;
  for (const View& output : env.outputs) {
    if (output.type == DType::i32) {
      const size_t at = bytes.size();
      bytes.resize(at + static_cast<size_t>(output.bytes()));
      ops->device().download(output, bytes.data() + at);
      continue;
    }
    const std::vector<float> values = download_f32(output);  // exact for every type here
    const std::byte* p = reinterpret_cast<const std::byte*>(values.data());
    bytes.insert(bytes.end(), p, p + values.size() * 4);
  }
  return bytes;
}

class Conformance : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  std::vector<Case> cases() const {
    std::vector<Case> out;
    for (const Case& c : all_cases()) {
      if (c.op == std::get<1>(GetParam())) out.push_back(c);
    }
    return out;
  }
  void check(bool plant_nan) {
    Machine machine;
    const std::unique_ptr<Ops> ops =
        make_shadow(make_backend(backend(), machine.context), make_ref_ops(machine.context));
    for (const Case& c : cases()) {
      Env env(*ops, seed_of(c), plant_nan);
      const std::function<void()> call = c.prepare(env);
      ASSERT_FALSE(env.outputs.empty()) << where(c);
      for (const View& output : env.outputs) ASSERT_GT(output.elements(), 0) << where(c);
      try {
        call();
      } catch (const Error& error) {
        ADD_FAILURE() << where(c) << "\n" << error.what();
      }
    }
  }
};

TEST_P(Conformance, AgreesWithTheOracle) { check(false); }

TEST_P(Conformance, PropagatesNaN) { check(true); }

TEST_P(Conformance, ThreadsDoNotChangeABit) {
  for (const Case& c : cases()) {
    const std::vector<std::byte> one = run_bytes(backend(), c, 1);
    ASSERT_FALSE(one.empty());
    for (int threads : {2, 3}) EXPECT_EQ(one, run_bytes(backend(), c, threads)) << threads << " threads, " << where(c);
  }
}

TEST_P(Conformance, CallsAllocateNothing) {
  Machine machine;
  const std::unique_ptr<Ops> ops = make_backend(backend(), machine.context);
  ops->reserve(512, 4096);
  for (const Case& c : cases()) {
    Env env(*ops, seed_of(c));
    const std::function<void()> call = c.prepare(env);
    if (!ops->device().is_host()) call();  // an accelerator's scratch grows with the first call of a shape
    const int64_t before = ops->device().allocations();
    call();
    ops->sync();
    EXPECT_EQ(ops->device().allocations(), before) << where(c);
  }
}

// Every operation on every back end; attention of a card also with one family of kernels alone, as which of them a
// shape meets depends on its rows.
std::vector<std::tuple<std::string, std::string>> backends_and_operations() {
  std::vector<std::tuple<std::string, std::string>> all;
  for (const std::string& backend : usable_backends()) {
    for (const std::string& operation : operations()) all.emplace_back(backend, operation);
    if (backend.rfind("cuda", 0) != 0) continue;
    for (const char* kernels : {"own", "library"}) all.emplace_back(backend + ",attention=" + kernels, "attention");
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(, Conformance, ::testing::ValuesIn(backends_and_operations()), [](const auto& test) {
  std::string name = std::get<0>(test.param) + "_" + std::get<1>(test.param);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::string(":,=").find(c) != std::string::npos; }, '_');
  return name;
});

// A hint changes no bit of what the reader gives, nor, unless the rows are its alone, of the rows (ops.h: feeds).
class Hints : public ::testing::TestWithParam<std::string> {};

TEST_P(Hints, ChangeNothing) {
  Machine machine;
  const std::unique_ptr<Ops> ops = make_backend(GetParam(), machine.context);
  constexpr int64_t kRows = 37, kIn = 512, kOut = 304;
  enum Way { kNone, kBeside, kAlone };
  for (const std::string maker : {"swiglu", "gate_norm", "norm_modulate"}) {
    SCOPED_TRACE(maker);
    std::vector<float> products[3], rows[3];
    for (const Way way : {kNone, kBeside, kAlone}) {
      Env e(*ops, run_seed());
      const Linear* reader = nullptr;  // the second of its kind: the first one's results are compared with the host's
      for (int i = 0; i < 2; ++i) {
        LinearSpec spec;
        spec.label = "test.fed";
        spec.weight = e.weight(kOut, kIn, Format::f8_e4m3);
        spec.compute = Compute::packed;
        reader = &e.keep(ops->make_linear(std::move(spec)));
      }
      const View x = e.in({kRows, 2 * kIn}, DType::bf16), stream = e.inout({kRows, kIn}, DType::bf16);
      const View h = e.out({kRows, kIn}, DType::bf16), y = e.out({kRows, kOut}, DType::bf16);
      const View table = e.in({3, 3 * kIn}, DType::bf16), ids = e.ids(kRows, 3);
      if (way != kNone) ops->feeds(*reader, way == kAlone);
      const Gate gate{table.slice(1, 2 * kIn, kIn), ids};
      const Modulation modulation{table.slice(1, 0, kIn), table.slice(1, kIn, kIn), ids};
      const View first = x.slice(1, 0, kIn);
      if (maker == "gate_norm") ops->gate_norm(stream, first, gate, {}, 1e-6f, modulation, h);
      if (maker == "norm_modulate") ops->norm_modulate(first, {}, 1e-6f, modulation, h);
      if (maker == "swiglu") ops->swiglu(first, x.slice(1, kIn, kIn), h);
      ops->linear(*reader, h.slice(0, 0, 20), y.slice(0, 0, 20));
      ops->linear_onto(*reader, h.slice(0, 20, kRows - 20), y.slice(0, 20, kRows - 20));
      ops->sync();
      products[way] = download_f32(y);
      rows[way] = download_f32(h);
    }
    EXPECT_EQ(products[kBeside], products[kNone]);
    EXPECT_EQ(products[kAlone], products[kNone]);
    EXPECT_EQ(rows[kBeside], rows[kNone]);
  }
}

INSTANTIATE_TEST_SUITE_P(, Hints, ::testing::ValuesIn(usable_backends()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

// Later calls that need more scratch leave a recording what it uses.
class Recorded : public ::testing::TestWithParam<std::string> {};

TEST_P(Recorded, OutlivesLargerCalls) {
  Machine machine;
  const std::unique_ptr<Ops> ops = make_backend(GetParam(), machine.context);
  Env e(*ops, run_seed());
  constexpr int64_t kRows = 40, kIn = 256, kOut = 64, kMore = 64 * kRows;
  LinearSpec spec;
  spec.label = "test.recorded";
  spec.weight = e.weight(kOut, kIn);
  spec.compute = Compute::bf16;  // f32 operands are cast into scratch
  const Linear& linear = e.keep(ops->make_linear(std::move(spec)));
  const View x = e.in({kRows, kIn}, DType::f32), y = e.out({kRows, kOut}, DType::f32);
  const View more_x = e.in({kMore, kIn}, DType::f32), more_y = e.out({kMore, kOut}, DType::f32);
  ops->linear(linear, x, y);
  ops->sync();
  const std::vector<float> expected = download_f32(y);
  const std::unique_ptr<Recording> recording = ops->record([&] { ops->linear(linear, x, y); });
  if (recording == nullptr) GTEST_SKIP() << "does not record";
  ops->linear(linear, more_x, more_y);
  ops->sync();
  const std::vector<float> expected_more = download_f32(more_y);
  // What the recording would write into if its scratch were given back.
  std::vector<Tensor> others;
  for (int i = 0; i < 16; ++i) {
    others.emplace_back(ops->device(), DType::f32, std::vector<int64_t>{kRows, kIn / 2}, "other");
    ops->fill(others.back(), 0.5f);
  }
  ops->fill(y, 0);
  recording->replay();
  ops->sync();
  EXPECT_EQ(download_f32(y), expected);
  for (const Tensor& other : others) {
    for (const float v : download_f32(other)) ASSERT_EQ(v, 0.5f);
  }
  ops->linear(linear, more_x, more_y);
  ops->sync();
  EXPECT_EQ(download_f32(more_y), expected_more);
}

INSTANTIATE_TEST_SUITE_P(, Recorded, ::testing::ValuesIn(usable_backends()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

// Weights that come and go in groups give the bits of those that stay, in whatever order they are asked for.
class Streamed : public ::testing::TestWithParam<std::string> {};

TEST_P(Streamed, EqualsResident) {
  Machine machine;
  const std::unique_ptr<Ops> ops = make_backend(GetParam(), machine.context);
  if (ops->make_group() == nullptr) GTEST_SKIP() << "has no groups";
  constexpr int64_t kRows = 9, kIn = 96, kOut = 64, kCount = 4;
  for (const Format format : {Format::bf16, Format::f32, Format::q8_row}) {  // as they are, packed at load, expanded
    Env e(*ops, run_seed());
    const View x = e.in({kRows, kIn}, DType::bf16), y = e.out({kRows, kOut}, DType::bf16);
    std::vector<std::unique_ptr<WeightGroup>> groups;
    std::vector<const Linear*> linears;
    std::vector<std::vector<float>> expected;
    const auto run = [&](const Linear& linear) {
      ops->linear(linear, x, y);
      ops->sync();
      return download_f32(y);
    };
    for (int i = 0; i < kCount; ++i) {
      LinearSpec spec;
      spec.label = "test.streamed";
      spec.weight = e.weight(kOut, kIn, format);
      spec.compute = Compute::bf16;
      expected.push_back(run(e.keep(ops->make_linear(spec))));
      spec.group = groups.emplace_back(ops->make_group()).get();
      linears.push_back(&e.keep(ops->make_linear(std::move(spec))));
    }
    for (const int i : {0, 1, 2, 3, 0, 0, 3, 2, 1, 3, 0, 2}) {
      groups[static_cast<size_t>(i)]->enter();
      groups[static_cast<size_t>((i + 1) % kCount)]->prefetch();
      EXPECT_EQ(run(*linears[static_cast<size_t>(i)]), expected[static_cast<size_t>(i)]) << row_of(format).name << i;
      groups[static_cast<size_t>(i)]->leave();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Streamed, ::testing::ValuesIn(usable_backends()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

// A back end either multiplies nvfp4 as it is stored, or says why not.
class Nvfp4 : public ::testing::TestWithParam<std::string> {};

TEST_P(Nvfp4, IsMultipliedOrRefused) {
  Machine machine;
  const std::unique_ptr<Ops> ops = make_backend(GetParam(), machine.context);
  Env e(*ops, run_seed());
  LinearSpec spec;
  spec.label = "test.nvfp4";
  spec.weight = e.weight(128, 64, Format::nvfp4);
  spec.compute = Compute::packed;
  const std::unique_ptr<Linear> linear = ops->make_linear(std::move(spec));
  const std::string refusal = ops->refuses_nvfp4();
  EXPECT_EQ(linear->nvfp4_activations, refusal.empty()) << linear->kernel;
  if (refusal.empty()) return;
  EXPECT_NE(refusal.find("compute capability 10.0 or later"), std::string::npos) << refusal;
  if (GetParam().rfind("cuda", 0) == 0) EXPECT_NE(refusal.find("this card is"), std::string::npos) << refusal;
}

INSTANTIATE_TEST_SUITE_P(, Nvfp4, ::testing::ValuesIn(usable_backends()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

// gate_norm must round as its composition does: the same bits.
class GateNorm : public ::testing::TestWithParam<std::string> {};

TEST_P(GateNorm, EqualsItsComposition) {
  Machine machine;
  const std::unique_ptr<Ops> ops = make_backend(GetParam(), machine.context);
  for (DType type : kTypes) {
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1, 16}, {23, 257}, {5, 2049}}) {
      const std::vector<int64_t> table = {3, dims[1]};
      std::vector<std::vector<float>> results[2];
      for (int fused = 0; fused < 2; ++fused) {
        Env e(*ops, run_seed());
        const View x = e.inout(dims, type, Layout::strided), h = e.out(dims, type), y = e.in(dims, type);
        const View w = e.parameter({dims[1]}, -2, 2), ids = e.ids(dims[0], 3);
        const Gate gate{e.parameter(table, -1, 1, type), ids};
        const Modulation mod{e.parameter(table, -1, 1, type), e.parameter(table, -1, 1, type), ids};
        if (fused) {
          ops->gate_norm(x, y, gate, w, 1e-5f, mod, h);
        } else {
          ops->gated_add(x, y, gate);
          ops->norm_modulate(x, w, 1e-5f, mod, h);
        }
        ops->sync();
        for (const View& output : e.outputs) results[fused].push_back(download_f32(output));
      }
      EXPECT_EQ(results[0], results[1]) << name_of(type) << ' ' << dims_text(dims) << ", H3_TEST_SEED=" << run_seed();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, GateNorm, ::testing::ValuesIn(usable_backends()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

// The suite itself must be able to fail: the oracle with a fault planted in its output after each call, through the
// same path as any back end. Every case has to notice every fault that changes a byte.
class Saboteur : public RefOps {
 public:
  using RefOps::RefOps;
  std::function<void()> plant;
  void sync() override {  // the shadow syncs before and after the call
    if (plant && ++syncs_ % 2 == 0) plant();
  }

 private:
  int syncs_ = 0;
};

enum class Fault { nan, infinity, sign, zeros, swapped_rows, off_by_units, stray_byte };
constexpr Fault kFaults[] = {Fault::nan,          Fault::infinity,     Fault::sign,      Fault::zeros,
                             Fault::swapped_rows, Fault::off_by_units, Fault::stray_byte};

// Where the largest finite element is.
std::pair<int64_t, int64_t> largest(const View& v) {
  std::pair<int64_t, int64_t> at{0, 0};
  double top = -1;
  for (int64_t row = 0; row < rows::row_count(v); ++row) {
    const std::vector<double> values = rows::load_row(v, row);
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::fabs(values[i]) > top) top = std::fabs(values[i]), at = {row, static_cast<int64_t>(i)};
    }
  }
  return at;
}

// bf16 roundings that may fall the other way; attention rounds every weight, so that one result says little.
double units_of(const std::string& op) {
  if (op == "attention" || op == "sparse_attention") return 0;
  if (op == "linear_head_norm_rope") return 24;  // of the sum, the norm and the rotation
  const bool several = op == "head_norm_rope" || op == "linear_scaled_add" || op == "linear_swiglu" ||
                       op == "linear_onto" || op == "norm_modulate" || op == "rms_norm" || op == "swiglu" ||
                       op == "scaled_add";
  return several ? 12 : 4.5;
}

// Returns whether the fault is one: zero has no sign, equal rows can be swapped.
bool plant_fault(const View& v, Fault fault, double units) {
  if (!is_float(v.type)) {
    if (fault == Fault::sign) *host<int32_t>(v) ^= 4;
    return fault == Fault::sign;
  }
  const int64_t rows = rows::row_count(v), n = rows::row_length(v);
  const auto [row, column] = largest(v);
  const double top = rows::load_row(v, row)[column];
  const auto put = [&, r = row, c = column](double value) {
    const double before = rows::load_row(v, r)[c];
    rows::store_row(v, r, c, 1, &value);
    return !(rows::load_row(v, r)[c] == before);
  };
  switch (fault) {
    case Fault::nan: return put(std::nan(""));
    case Fault::infinity: return put(-std::numeric_limits<double>::infinity());
    case Fault::sign: return put(-top);
    case Fault::off_by_units: return v.type == DType::bf16 && units > 0 && put(top * (1 + units * 0x1p-8));
    case Fault::zeros: {
      if (!(std::fabs(top) > 0.1)) return false;  // so small a result may lie inside what its sums allow
      const std::vector<double> zeros(static_cast<size_t>(n));
      for (int64_t r = 0; r < rows; ++r) rows::store_row(v, r, 0, n, zeros.data());
      return true;
    }
    case Fault::swapped_rows: {
      if (rows < 2) return false;
      const std::vector<double> a = rows::load_row(v, 0), b = rows::load_row(v, rows - 1);
      rows::store_row(v, 0, 0, n, b.data());
      rows::store_row(v, rows - 1, 0, n, a.data());
      return a != b;
    }
    case Fault::stray_byte: {
      if (v.contiguous() || rows < 2) return false;
      std::byte* behind = rows::row_address(v, 0) + n * v.stride[v.rank - 1] * size_of(v.type);
      if (behind == rows::row_address(v, 1)) return false;
      *behind ^= std::byte{1};
      return true;
    }
  }
  return false;
}

class Sabotage : public ::testing::TestWithParam<std::string> {};

TEST_P(Sabotage, IsNoticed) {
  Machine machine;
  int planted = 0, turn = 0;
  for (const Case& c : all_cases()) {
    if (c.op != GetParam()) continue;
    ++turn;
    for (Fault fault : kFaults) {
      if ((turn + static_cast<int>(fault)) % 3 != 0) continue;  // each case meets some of them
      auto saboteur = std::make_unique<Saboteur>(machine.context);
      Saboteur& fast = *saboteur;
      const std::unique_ptr<Ops> ops = make_shadow(std::move(saboteur), make_ref_ops(machine.context));
      Env env(*ops, seed_of(c));
      const std::function<void()> call = c.prepare(env);
      bool is_fault = false;
      // What may hold anything has no wrong elements, but its gaps have bytes of others.
      const bool beside = fault == Fault::stray_byte && !env.scratch.empty();
      fast.plant = [&] { is_fault = plant_fault(beside ? env.scratch : env.outputs.front(), fault, units_of(c.op)); };
      bool noticed = false;
      try {
        call();
      } catch (const Error&) {
        noticed = true;
      }
      EXPECT_EQ(noticed, is_fault) << "fault " << static_cast<int>(fault) << " in " << where(c);
      planted += is_fault;
    }
  }
  EXPECT_GT(planted, 0);
}

INSTANTIATE_TEST_SUITE_P(, Sabotage, ::testing::ValuesIn(operations()), [](const auto& test) { return test.param; });

// Every operation of ops.h has rows in the table.
TEST(CaseTable, CoversEveryOperation) {
  std::ifstream file(std::string(H3_SOURCE_DIR) + "/src/ops/ops.h");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t begin = text.find("// ---- move");
  ASSERT_NE(begin, std::string::npos);
  std::set<std::string> declared;
  const std::string method = "virtual void ";
  for (size_t at = text.find(method, begin); at != std::string::npos; at = text.find(method, at + 1)) {
    const size_t name = at + method.size();
    declared.insert(text.substr(name, text.find('(', name) - name));
  }
  declared.erase("feeds");  // a hint: cases of linear give it
  const std::vector<std::string> ops = operations();
  EXPECT_EQ(std::set<std::string>(ops.begin(), ops.end()), declared);
  EXPECT_GE(declared.size(), 25u);
}

}  // namespace
}  // namespace h3::conformance
